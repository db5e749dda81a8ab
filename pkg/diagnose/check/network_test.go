package check

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// refusing is the apiserver's answer to a user without permission to read Secrets.
type refusing struct{ client.Reader }

func (refusing) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewForbidden(corev1.Resource("secrets"), key.Name, nil)
}

// TestTheTunnelProvidesTheAddressWithoutTheSecret proves that a reader without access to the kubeconfig, such as the
// status page, still tests the gateways' name and port from the record in the Tunnel.
func TestTheTunnelProvidesTheAddressWithoutTheSecret(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, open, _ := net.SplitHostPort(listener.Addr().String())
	network := place{names: map[string][]netip.Addr{
		"gw.test":     {netip.MustParseAddr("127.0.0.1")},
		"silent.test": {netip.MustParseAddr("127.0.0.2")},
	}}
	tests := map[string]struct {
		record     v1alpha1.KubeconfigStatus
		name, port Status
		says       string
	}{
		"by SNI": {v1alpha1.KubeconfigStatus{
			Server:        "https://gw.test:" + open,
			TLSServerName: "c1.test",
		}, OK, OK, "gw.test is 127.0.0.1 (according to the Tunnel's status)"},
		"by CONNECT": {v1alpha1.KubeconfigStatus{
			Server:   "https://c1.test:6443",
			ProxyURL: "http://GW.test.:" + open,
		}, OK, OK, "127.0.0.1:" + open + " accepts connections"},
		"an address": {
			v1alpha1.KubeconfigStatus{Server: "https://127.0.0.1:" + open},
			OK, OK,
			"is an IP address (according to the Tunnel's status)",
		},
		"nothing listens": {
			v1alpha1.KubeconfigStatus{Server: "https://silent.test:" + open},
			OK, Broken,
			"refused",
		},
		"an unknown name": {
			v1alpha1.KubeconfigStatus{Server: "https://gone.test:" + open},
			Broken, Skipped,
			"has no address",
		},
		"nothing is written yet": {v1alpha1.KubeconfigStatus{}, Unknown, Skipped, "not in the Tunnel's status"},
		"the status is no longer one": {
			v1alpha1.KubeconfigStatus{Server: "https://%zz"},
			Unknown, Skipped,
			"not in the Tunnel's status",
		},
	}
	for name, tc := range tests {
		for reader, secrets := range map[string]client.Reader{"without Secrets": nil, "forbidden": refusing{}} {
			t.Run(name+", "+reader, func(t *testing.T) {
				v := &visit{
					Checker: &Checker{Network: network, Secrets: secrets},
					key:     client.ObjectKey{Namespace: "shop", Name: "c1"},
				}
				v.cluster, v.tunnel = &clusterv1.Cluster{}, &v1alpha1.Tunnel{Status: v1alpha1.TunnelStatus{Kubeconfig: tc.record}}
				v.defaults()
				var details string
				got := map[ID]Status{}
				for _, hop := range Hops() {
					switch hop.ID {
					case HopKubeconfig, HopName, HopPort, HopAuthentication:
						r := v.visit(t.Context(), hop)
						got[hop.ID], details = r.Status, details+r.Detail+"; "
					}
				}
				if got[HopName] != tc.name || got[HopPort] != tc.port || !strings.Contains(details, tc.says) {
					t.Errorf("got %v: %s; want %s, %s, and %q said", got, details, tc.name, tc.port, tc.says)
				}
				// What only the Secret contains stays unknown.
				if got[HopKubeconfig] != Unknown || got[HopAuthentication] != Unknown {
					t.Errorf("got %v", got)
				}
			})
		}
	}
}
