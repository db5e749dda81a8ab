package xds

import (
	"maps"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
)

// marshal is a seed.
func marshal(f *testing.F, m proto.Message) []byte {
	f.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// versions returns the versions of resources as they are sent.
func versions(t testing.TB, all map[string]types.Resource) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, r := range all {
		value, err := cachev3.MarshalResource(r)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = cachev3.HashResource(value)
	}
	return out
}

// FuzzSubscriptions sends three requests on the stream of an edge, and changes the resources in between. An Envoy
// that applies each response has all resources in their versions after it, whatever it claims to have or requests,
// and the server records nothing else about it.
func FuzzSubscriptions(f *testing.F) {
	generations := make([]map[string]types.Resource, 3)
	for i := range generations {
		generations[i] = map[string]types.Resource{}
		for _, name := range []string{"a", "b", "c"}[:3-i/2] {
			generations[i][name] = &clusterv3.Cluster{Name: name, AltStatName: string(rune('0' + i))}
		}
	}
	request := func(change func(*discoveryv3.DeltaDiscoveryRequest)) []byte {
		r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resourcev3.ClusterType}
		change(r)
		return marshal(f, r)
	}
	plain := request(func(*discoveryv3.DeltaDiscoveryRequest) {})
	f.Add(plain, plain, plain)
	f.Add(
		request(func(r *discoveryv3.DeltaDiscoveryRequest) {
			r.InitialResourceVersions = versions(f, generations[0])
			r.InitialResourceVersions["gone"], r.InitialResourceVersions["a"] = "1", "not hexadecimal"
			r.ResourceNamesSubscribe = []string{"*"}
		}),
		request(func(r *discoveryv3.DeltaDiscoveryRequest) {
			r.ResourceNamesUnsubscribe = []string{"b", "*", "b", "other"}
		}),
		request(func(r *discoveryv3.DeltaDiscoveryRequest) { r.ResourceNamesSubscribe = []string{"*", "*"} }),
	)
	f.Add(
		plain, request(func(r *discoveryv3.DeltaDiscoveryRequest) { r.ResourceNamesSubscribe = []string{"a"} }), []byte{0xff},
	)
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		var k kind
		has := map[string]string{} // what the Envoy has
		for i, data := range [][]byte{first, second, third} {
			r := &discoveryv3.DeltaDiscoveryRequest{}
			if proto.Unmarshal(data, r) != nil {
				return // the stream ends
			}
			got, err := readRequest(r)
			if err != nil {
				return // likewise
			}
			if i == 0 {
				for name, version := range r.GetInitialResourceVersions() {
					has[name] = strings.ToLower(version) // hexadecimal digits are the same in both cases
				}
			}
			for _, name := range r.GetResourceNamesUnsubscribe() {
				delete(has, name)
			}
			k.apply(got)
			k.stale = true // the resources have changed
			if !k.due() || !k.all {
				continue
			}
			response, known, err := difference(resourcev3.ClusterType, generations[i], k.known)
			if err != nil {
				t.Fatal(err)
			}
			k.known, k.first, k.stale = known, false, false
			for _, sent := range response.GetResources() {
				has[sent.GetName()] = sent.GetVersion()
			}
			for _, name := range response.GetRemovedResources() {
				delete(has, name)
			}
			if want := versions(t, generations[i]); !maps.Equal(has, want) || len(k.known) != len(want) {
				t.Fatalf("after answer %d it has %v, want %v, and %d resources are remembered", i, has, want, len(k.known))
			}
		}
	})
}
