package xds_test

import (
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestResourcesAreRenderedForTheVersionOfTheirAgent connects agents of several versions at the same time, on real
// streams.
func TestResourcesAreRenderedForTheVersionOfTheirAgent(t *testing.T) {
	logging := inst
	logging.AccessLog = model.AccessLogAll
	b := newBedOf(t, logging)
	wc := workload("c1")
	b.Replace([]model.WorkloadCluster{wc})
	nodeWith := func(s model.Subject, version string) *corev3.Node {
		node := nodeOf(s)
		if s.Role == model.RoleEdge {
			node.Metadata = envoy.EdgeDial{Version: envoy.Current}.Metadata()
		} else {
			versioned := bind
			versioned.Version = envoy.Current
			node.Metadata = versioned.Metadata()
		}
		fields := node.GetMetadata().GetFields()["fairlead"].GetStructValue().GetFields()
		if got := fields["version"].GetStringValue(); got != envoy.Current.String() {
			t.Fatalf("an agent of this version says %q", got)
		}
		if delete(fields, "version"); version != "" {
			fields["version"] = structpb.NewStringValue(version)
		}
		return node
	}
	for _, s := range []model.Subject{gateway, edgeOf(wc)} {
		for version, want := range map[string]bool{"": false, "x": false, envoy.Current.String(): true, "9.9": true} {
			identity := b.identity(t, s, time.Now().Add(time.Hour))
			a := b.claim(t, &identity, nodeWith(s, version))
			a.fetch(t, cds)
			a.subscribe(t, lds, nil)
			for _, r := range a.next(t).GetResources() {
				value, err := proto.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				if r.GetName() == "public" || r.GetName() == "connect" {
					continue // one writes records that are the same for every version, the other one nothing
				}
				if got := strings.Contains(string(value), "%CONNECTION_ID%"); got != want {
					t.Errorf(
						"a %s that says version %q gets %s with the number of the connection: %t", s.Role, version, r.GetName(), got,
					)
				}
			}
			if err := a.CloseSend(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
