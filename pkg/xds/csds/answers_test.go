package csds

import (
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// rejection is a NACK that names a resource.
func rejection(t *testing.T, nonce, name, why string) *discoveryv3.DeltaDiscoveryRequest {
	t.Helper()
	packed, err := anypb.New(&statusv3.ClientConfig{GenericXdsConfigs: []*statusv3.ClientConfig_GenericXdsConfig{
		{Name: name, ErrorState: &adminv3.UpdateFailureState{Details: why}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &discoveryv3.DeltaDiscoveryRequest{
		ResponseNonce: nonce, ErrorDetail: &status.Status{Details: []*anypb.Any{packed}},
	}
}

// TestARejectionLastsUntilItsResourceIsAccepted: answers about other resources do not end it.
func TestARejectionLastsUntilItsResourceIsAccepted(t *testing.T) {
	var a Answers
	send := func(nonce string, names ...string) {
		response := &discoveryv3.DeltaDiscoveryResponse{Nonce: nonce}
		for _, name := range names {
			response.Resources = append(response.Resources, &discoveryv3.Resource{Name: name})
		}
		a.Sent(response, time.Now())
	}
	ack := func(nonce string) { a.Received(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: nonce}, time.Now()) }
	nack := func(nonce, name string) { a.Received(rejection(t, nonce, name, "why"), time.Now()) }
	for i, step := range []struct {
		does func()
		want bool
	}{
		{func() { send("1", "x", "y") }, false},
		{func() { nack("1", "x") }, true},
		{func() { send("2", "y") }, true},
		{func() { ack("2") }, true},
		{func() { send("3", "x") }, false},
		{func() { nack("1", "x") }, true}, // it was on its way
		{func() { ack("3") }, false},
	} {
		if step.does(); a.Rejects() != step.want {
			t.Errorf("after step %d a resource is rejected: %t", i+1, !step.want)
		}
	}
}

// TestARejectedNameIsPrintableAndShort has a node reject a resource whose name it makes up, with the control characters
// that clear a terminal, and as long as a message may be.
func TestARejectedNameIsPrintableAndShort(t *testing.T) {
	var a Answers
	a.Received(rejection(t, "1", "\x1b[2J\nlevel=ERROR "+strings.Repeat("x", 200<<10), "why\x1b[2J"), time.Now())
	name, why := a.FirstRejection()
	if !strings.HasPrefix(name, " [2J level=ERROR xx") || len(name) > maxName || why != "why [2J" {
		t.Errorf("got a name of %d bytes, %.40q, and the reason %q", len(name), name, why)
	}
}
