package xds

import (
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// proxying returns a listener that forwards to an Envoy cluster.
func proxying(t *testing.T, name, cluster string) *listenerv3.Listener {
	t.Helper()
	config, err := anypb.New(
		&tcpproxyv3.TcpProxy{StatPrefix: name, ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return &listenerv3.Listener{Name: name, FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{
		{Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}},
	}}}}
}

// dialling returns a listener that opens reverse tunnels to an Envoy cluster.
func dialling(name, cluster string) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "rc://CN=edge-a:x.id.tunnels.example.com:fairlead@" + cluster + ":2",
		}}},
	}
}

func TestCheckOfListeners(t *testing.T) {
	known := set([]string{"agent", "peer"})
	unreadable := proxying(t, "bad", "peer")
	unreadable.FilterChains[0].Filters[0].GetTypedConfig().TypeUrl = "type.googleapis.com/no.such.Type"
	tests := map[string]struct {
		in      *listenerv3.Listener
		wantErr string
	}{
		"a TCP proxy to one that exists":                    {in: proxying(t, "l", "peer")},
		"a TCP proxy to one that does not":                  {in: proxying(t, "l", "gone"), wantErr: "do not exist: gone"},
		"reverse tunnels to one that exists":                {in: dialling("l", "peer")},
		"reverse tunnels to one that does not":              {in: dialling("l", "gone"), wantErr: "do not exist: gone"},
		"an unknown extension":                              {in: unreadable, wantErr: "no.such.Type"},
		"a listener without a name":                         {in: &listenerv3.Listener{}, wantErr: "name is empty"},
		"a listener with the name of another in the answer": {in: proxying(t, "good", "peer"), wantErr: "duplicate"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			good, errs := check(
				[]*listenerv3.Listener{proxying(t, "good", "peer"), tc.in, proxying(t, "last", "agent")}, nil, known,
			)
			if good["good"] == nil || good["last"] == nil {
				t.Error("the others are left out too")
			}
			if tc.wantErr == "" {
				if len(errs) > 0 || len(good) != 3 {
					t.Errorf("unexpected: %v", errs)
				}
				return
			}
			if len(good) != 2 || len(errs) != 1 || !strings.Contains(errs[0].Error(), tc.wantErr) {
				t.Errorf("got %v, want an error about %q", errs, tc.wantErr)
			}
		})
	}
}

func TestCheckOfReservedNames(t *testing.T) {
	good, errs := check([]*clusterv3.Cluster{{Name: "agent"}, {Name: "c1.example.com"}}, set([]string{"agent"}), nil)
	if len(good) != 1 || good["c1.example.com"] == nil || len(errs) != 1 {
		t.Errorf("got %v and %v", good, errs)
	}
	if names := namesOf(good, set([]string{"agent"})); !slices.Contains(keys(names), "agent") || len(names) != 2 {
		t.Errorf("got %v", names)
	}
}

func keys(m map[string]bool) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	return all
}
