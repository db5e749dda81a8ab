package xdsproxy

import (
	"fmt"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

// marking is an override that appends its form to the type URL of a resource.
type marking string

// Form implements Override.
func (m marking) Form(name string) string {
	if name == "usual" {
		return ""
	}
	return string(m)
}

// Apply implements Override.
func (m marking) Apply(_, form string, resource *anypb.Any) *anypb.Any {
	if form == "" {
		return resource
	}
	return &anypb.Any{TypeUrl: resource.GetTypeUrl() + " " + form}
}

// TestOverridesApplyInOrder: each has its own part of the form, and nothing is applied in the usual form.
func TestOverridesApplyInOrder(t *testing.T) {
	for form, tc := range map[string]struct {
		of   Overrides
		name string
		want string
	}{
		"":        {Overrides{marking("first"), marking("second")}, "usual", "is"},
		"only":    {Overrides{marking("only")}, "x", "is only"},
		"a+b":     {Overrides{marking("a"), marking("b")}, "x", "is a b"},
		"+b":      {Overrides{marking(""), marking("b")}, "x", "is b"},
		"a++last": {Overrides{marking("a"), marking(""), marking("last")}, "x", "is a last"},
	} {
		if got := tc.of.Form(tc.name); got != form {
			t.Errorf("the form is %q, want %q", got, form)
		}
		if got := tc.of.Apply(tc.name, form, &anypb.Any{TypeUrl: "is"}).GetTypeUrl(); got != tc.want {
			t.Errorf("%q becomes %q, want %q", form, got, tc.want)
		}
	}
	// an Envoy that an earlier agent has started may show fewer
	fewer := (Overrides{marking("a"), marking("b")}).Apply("x", "a", &anypb.Any{TypeUrl: "is"})
	if got := fewer.GetTypeUrl(); got != "is a" {
		t.Errorf("a form with one part becomes %q", got)
	}
}

// TestAnEnvoyWithManyFormsReconnects: it names all Envoy clusters, here 100,000 with long names that are forwarded to
// three gateways.
func TestAnEnvoyWithManyFormsReconnects(t *testing.T) {
	const names = 100_000
	version := strings.Repeat("a", 64) + formMark + "to:gateway-10,gateway-11,gateway-12"
	request := &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: relay.Clusters.TypeURL(), InitialResourceVersions: make(map[string]string, names),
	}
	for i := range names {
		request.InitialResourceVersions[fmt.Sprintf("%080d", i)] = version
	}
	if size := proto.Size(request); size > MaxRequest {
		t.Errorf("the request has %d bytes, and the agent accepts %d", size, MaxRequest)
	}
}
