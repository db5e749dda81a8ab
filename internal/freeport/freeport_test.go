package freeport_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/fairlead/fairlead/internal/freeport"
)

func TestPortsAreDifferentAndFree(t *testing.T) {
	seen := map[int]bool{}
	for range 1000 {
		port := freeport.TCP(t)
		if seen[port] {
			t.Fatalf("port %d is given twice", port)
		}
		seen[port] = true
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close()
	}
}
