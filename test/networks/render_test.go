package networks

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/world"
)

// resources are resources of an Envoy by their names, with the kind in front.
type resources map[string]proto.Message

// renders proves that fairlead render makes the configuration that runs from the objects of the management cluster.
func (f *fleet) renders(t *testing.T) {
	that(t, "fairlead render prints what gateways, edges and the Envoys beside apiservers were sent", func(t *testing.T) {
		dir := f.objects(t)
		gateway := []string{
			"--gateway=gateway-0", "--public-listen=" + netns.HostPort(f.Network.PublicAddress(0).String(), netns.PublicPort),
			"--apiserver-listen=" + netns.HostPort(f.Network.InsideAddress(0).String(), netns.APIServerPort),
			"--connect-listen=" + netns.HostPort(f.Network.InsideAddress(0).String(), netns.ConnectPort),
		}
		if diff := f.differs(t, dir, "gateway-0", gateway...); diff != "" {
			t.Error(diff)
		}
		f.rendersEdge(t, dir, f.edge1, "site1.network", "--edge-listen=10.1.0.2:6443")
		f.rendersEdge(t, dir, f.edge2, "site2.network")
		f.rendersEdge(t, dir, f.edge3, "vault.network", "--edge-listen=10.1.0.2:6443")
		f.rendersEdge(t, dir, f.shop.Egress, "shop.egress", "--egress-socket="+f.shop.Socket)
		f.rendersEdge(t, dir, f.bank.Egress, "bank.egress", "--egress-socket="+f.bank.Socket)
	})
}

// objects returns a folder with the objects that render needs.
func (f *fleet) objects(t *testing.T) string {
	t.Helper()
	dir := f.File("render") // without a comma, unlike t.TempDir: -f takes lists
	must(t, os.MkdirAll(dir, 0o700))
	file, err := f.ManagementKubeconfig()
	must(t, err)
	kubeconfig, err := os.ReadFile(file)
	must(t, err)
	out, err := f.Kubectl(
		t.Context(), kubeconfig, "get", "-A", "-o", "yaml",
		"clusters.cluster.x-k8s.io,tunnels.fairlead.dev,remotenetworks.fairlead.dev,statefulsets.apps",
	)
	must(t, err)
	settings, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "fairlead-settings"},
		"data": map[string]string{
			"TUNNEL_DOMAIN": string(world.Domain), "PUBLIC_ADDRESS": netns.HostPort(f.Network.PublicName, netns.PublicPort),
			"GATEWAYS_PER_TUNNEL": strconv.Itoa(model.DefaultGatewaysPerTunnel),
		},
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(out), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "settings.yaml"), settings, 0o600))
	return dir
}

// rendersEdge compares an edge of a Tunnel. Whether it is near to the gateways depends on the load of this machine.
func (f *fleet) rendersEdge(t *testing.T, dir string, a *lab.Agent, tunnel string, flags ...string) {
	t.Helper()
	if a == nil {
		t.Fatalf("nothing has enrolled for %s", tunnel)
	}
	node := world.Steal(t, a).Subject.Node
	flags = append(flags, "--edge="+world.Namespace+"/"+tunnel, "--node="+node)
	if near := f.differs(t, dir, node, append(flags, "--near")...); near != "" {
		if far := f.differs(t, dir, node, flags...); far != "" {
			t.Error(near)
		}
	}
}

// differs returns how what was sent to a node differs from what render prints.
func (f *fleet) differs(t *testing.T, dir, node string, flags ...string) string {
	t.Helper()
	args := append([]string{"render", "-f", dir, "--apiserver-cidrs=" + netns.ManagementPrefix().String()}, flags...)
	rendered, scopes := parsed(t, f.output(t, args...))
	sent := f.sent(t, node)
	var all strings.Builder
	for name, want := range sent {
		if l, ok := want.(*listenerv3.Listener); ok && len(scopes) > 0 { // the scopes of a bootstrap are in its listener
			want = network.WithScopes(l, scopes)
		}
		// No setting has the address of the xds-servers, which deploy/kubernetes fixes and the lab does not.
		if diff := cmp.Diff(want, rendered[name], protocmp.Transform()); diff != "" && name != "cds control_channel" {
			fmt.Fprintf(&all, "%s, %s: sent (-), rendered (+):\n%s", node, name, diff)
		}
		delete(rendered, name)
	}
	for name := range rendered {
		cluster, _ := strings.CutPrefix(name, "cds ")
		if name != "lds loop" && !slices.Contains(envoy.StaticClusters(model.RoleGateway), cluster) {
			fmt.Fprintf(&all, "%s: %s is rendered and was not sent\n", node, name)
		}
	}
	if len(sent) == 0 {
		fmt.Fprintf(&all, "nothing was sent to %s\n", node)
	}
	return all.String()
}

// output runs fairlead, and returns what it prints.
func (f *fleet) output(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd, err := f.Command(context.WithoutCancel(t.Context()), args...)
	must(t, err)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("fairlead %s: %v: %s", strings.Join(args, " "), err, complaint.String())
	}
	return out
}

// parsed returns the resources of a bootstrap, and the scopes among them in order.
func parsed(t *testing.T, text []byte) (all resources, scopes []*routev3.ScopedRouteConfiguration) {
	t.Helper()
	data, err := yaml.YAMLToJSON(text)
	must(t, err)
	bootstrap := &bootstrapv3.Bootstrap{}
	must(t, protojson.Unmarshal(data, bootstrap))
	all = resources{}
	for _, c := range bootstrap.GetStaticResources().GetClusters() {
		all["cds "+c.GetName()] = c
	}
	for _, l := range bootstrap.GetStaticResources().GetListeners() {
		all["lds "+l.GetName()] = l
		for _, chain := range l.GetFilterChains() {
			for _, filter := range chain.GetFilters() {
				manager := &hcmv3.HttpConnectionManager{}
				if filter.GetTypedConfig().UnmarshalTo(manager) == nil {
					list := manager.GetScopedRoutes().GetScopedRouteConfigurationsList()
					scopes = append(scopes, list.GetScopedRouteConfigurations()...)
				}
			}
		}
	}
	for _, s := range scopes {
		all["srds "+s.GetName()] = s
	}
	return all, scopes
}

// sent returns the resources that were sent to a node.
func (f *fleet) sent(t *testing.T, node string) resources {
	t.Helper()
	var dump struct {
		Resources []struct {
			Type, Name string
			Sent       json.RawMessage
		}
	}
	must(t, json.Unmarshal(f.output(t, "config", "dump", node, "-o", "json", f.Inspection()), &dump))
	all := resources{}
	for _, r := range dump.Resources {
		kind := strings.ToLower(r.Type)
		message := map[string]proto.Message{
			"cds": &clusterv3.Cluster{}, "lds": &listenerv3.Listener{}, "srds": &routev3.ScopedRouteConfiguration{},
		}[kind]
		must(t, protojson.Unmarshal(r.Sent, message))
		all[kind+" "+r.Name] = message
	}
	return all
}
