package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"
)

// TestAClientThatLeavesWhileGatewaysAreListedGetsAnError: without an error there must be a connection.
func TestAClientThatLeavesWhileGatewaysAreListedGetsAnError(t *testing.T) {
	listing := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		listing <- struct{}{}
		<-r.Context().Done()
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-listing; cancel() }()
	g := &gateways{rest: &rest.Config{Host: server.URL}, namespace: "fairlead-system"}
	if conn, err := g.connect(ctx, "c1.prod.tunnels.example.com:6443"); conn != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v", conn, err)
	}
}
