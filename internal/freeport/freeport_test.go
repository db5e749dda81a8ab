package freeport_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/freeport"
)

// among is the variable that makes this test print what it was given.
const among = "FREEPORT_PRINT"

// TestPortsAreDifferentAndFree has two processes: by chance alone they would be given about 40 ports of each other.
func TestPortsAreDifferentAndFree(t *testing.T) {
	const ports = 1000
	seen := map[string]bool{}
	for range ports {
		port := fmt.Sprint(freeport.TCP(t))
		if seen[port] {
			t.Fatalf("port %s is given twice", port)
		}
		seen[port] = true
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close()
		if os.Getenv(among) != "" {
			fmt.Println("given", port)
		}
	}
	if os.Getenv(among) != "" {
		return
	}
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	other.Env = append(os.Environ(), among+"=1")
	out, err := other.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	given := 0
	for line := range strings.Lines(string(out)) {
		if port, ok := strings.CutPrefix(strings.TrimSpace(line), "given "); ok {
			given++
			if seen[port] {
				t.Errorf("port %s is given to two processes", port)
			}
		}
	}
	if given != ports {
		t.Errorf("the other process was given %d ports, want %d", given, ports)
	}
}
