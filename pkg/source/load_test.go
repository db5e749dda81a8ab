package source_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

const settings = `apiVersion: v1
kind: ConfigMap
metadata: {name: fairlead-settings, namespace: fairlead-system}
data:
  TUNNEL_DOMAIN: tunnels.example.com
  PUBLIC_ADDRESS: gw.example.com:443
  GATEWAY_WORKERS: "2"
  REPLICA_ADDRESS: gateway-{i}.example.com:443
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: gateway, namespace: fairlead-system}
spec:
  replicas: 2
  serviceName: gateways
  template: {spec: {containers: [{name: agent, ports: [{name: public, containerPort: 8443}]}]}}
`

const objects = `apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata:
  name: c1
  namespace: prod
spec:
  controlPlaneEndpoint: {host: API.C1.example.com., port: 6444}
---
# somebody else's
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: DockerCluster
metadata: {name: c1, namespace: prod}
---
apiVersion: fairlead.dev/v1alpha1
kind: Tunnel
metadata: {name: c1, namespace: prod}
spec:
  id: aaaaaaaaaaaaaaaaaaaa
  extraNames:
  - api.example.com
`

func load(t *testing.T, files ...string) (source.Loaded, error) {
	t.Helper()
	var inputs []source.Input
	for i, data := range files {
		inputs = append(inputs, source.Input{Name: string(rune('a'+i)) + ".yaml", Data: []byte(data)})
	}
	return source.Load(inputs, nil)
}

func TestLoadObjects(t *testing.T) {
	got, err := load(t, settings, objects)
	if err != nil {
		t.Fatal(err)
	}
	want := model.Fleet{
		Installation: model.Installation{
			Domain: domain, Public: model.Endpoint{Host: "gw.example.com", Port: 443},
			Control: model.Endpoint{Host: "xds-server.fairlead-system.svc", Port: 18000}, Workers: 2,
			ReplicaAddress: "gateway-{i}.example.com:443",
			Gateways: []model.Gateway{
				{
					Name:   "gateway-0",
					Peer:   model.Endpoint{Host: "gateway-0.gateways.fairlead-system.svc", Port: 8443},
					Public: model.Endpoint{Host: "gateway-0.example.com", Port: 443},
				},
				{
					Name:   "gateway-1",
					Peer:   model.Endpoint{Host: "gateway-1.gateways.fairlead-system.svc", Port: 8443},
					Public: model.Endpoint{Host: "gateway-1.example.com", Port: 443},
				},
			},
		},
		Clusters: []model.WorkloadCluster{{
			Key: model.Key{
				Namespace: "prod",
				Name:      "c1",
			}, ID: "aaaaaaaaaaaaaaaaaaaa", Hostname: "c1.prod.tunnels.example.com", ExtraNames: []string{"api.example.com"},
			APIServer: model.Endpoint{Host: "api.c1.example.com", Port: 6444},
		}},
	}
	if diff := cmp.Diff(want, got.Fleet); diff != "" {
		t.Error(diff)
	}
	if len(got.Assumed) != 0 {
		t.Errorf("assumed %v", got.Assumed)
	}
	list := "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(
		strings.Split(objects, "---")[2], "\n", "\n  ",
	) + "\n"
	if got, err := load(t, list); err != nil || len(got.Fleet.Clusters) != 1 ||
		got.Fleet.Clusters[0].APIServer.Host != "127.0.0.1" ||
		len(got.Assumed) != 3 {
		t.Errorf("a list of a Tunnel alone: %v, %+v", err, got)
	}
}

// TestLoadAndParseReturnTheSameFleet checks that both return the same for a fleet in one file.
func TestLoadAndParseReturnTheSameFleet(t *testing.T) {
	want, err := source.Parse([]byte(fleet))
	if err != nil {
		t.Fatal(err)
	}
	got, err := load(t, fleet)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Fleet); diff != "" {
		t.Error(diff)
	}
	more := "clusters:\n- {namespace: prod, name: c2, id: bbbbbbbbbbbbbbbbbbbb, apiServer: 10.0.0.3:6443}\n"
	if got, err := load(t, fleet, more, objects[strings.Index(objects, "apiVersion: fairlead.dev"):]); err == nil ||
		!strings.Contains(err.Error(), "prod/c1 is also in a fleet") {
		t.Errorf("a name twice: %v, %+v", err, got)
	}
	if got, err := load(t, fleet, more); err != nil || len(got.Fleet.Clusters) != 2 {
		t.Errorf("workload clusters of two files: %v, %+v", err, got)
	}
}

func TestLoadNamesFileLineAndField(t *testing.T) {
	replace := func(old, with string) []string { return []string{strings.Replace(objects, old, with, 1)} }
	for name, tc := range map[string]struct {
		in   []string
		want []string
	}{
		"a bad extra name": {replace("- api.example.com", "- api.example.com\n  - 192.0.2.1"), []string{"a.yaml:21:5: " +
			"spec.extraNames[1]: \"192.0.2.1\": ", "it is an IP address"}},
		"a field that is none": {
			replace("extraNames:", "extraName:"), []string{"a.yaml:19:3: spec.extraName: unknown field"},
		},
		"two fields that are none": {
			replace("extraNames:", "extraName: []\n  apiServer: {host: a.example.com}\n  extraNames:"),
			[]string{"a.yaml:19:3: spec.extraName: unknown field", "a.yaml:20:15: spec.apiServer.host: unknown field"},
		},
		"an alias": {
			replace("  - api.example.com", "  - &name 192.0.2.1\n  - *name"),
			[]string{"a.yaml:20:5: spec.extraNames[0]", "a.yaml:21:5: spec.extraNames[1]"},
		},
		"text in place of a number": {
			replace("port: 6444", "port: https"),
			[]string{"a.yaml:7:53: spec.controlPlaneEndpoint.port: is a string, and must be a number"},
		},
		"no YAML":        {replace("kind: Tunnel", "  kind: Tunnel"), []string{"a.yaml:15: not YAML: "}},
		"a bad endpoint": {replace("API.C1.example.com.", "a b"), []string{"a.yaml:7:3: spec.controlPlaneEndpoint", "a b"}},
		"an object twice": {
			[]string{objects, objects},
			[]string{"b.yaml:4:3: metadata.name: the Cluster prod/c1 is also in a.yaml:1:1", "b.yaml:16:12: "},
		},
		"no object of Fairlead": {
			[]string{"apiVersion: v1\nkind: Secret\n"}, []string{"the input has neither a fleet nor a Cluster"},
		},
		"a list of texts": {[]string{"- a\n- b\n"}, []string{"a.yaml:1:1: must be a Kubernetes object or a fleet"}},
		"a bad setting": {
			[]string{strings.Replace(settings, "tunnels.example.com", "tunnels", 1), objects},
			[]string{"a.yaml:5:3: data.TUNNEL_DOMAIN: "},
		},
		"no gateway": {
			[]string{strings.Replace(settings, "replicas: 2", "replicas: 0", 1), objects},
			[]string{"a.yaml:10:1: StatefulSet fairlead-system/gateway: spec.replicas"},
		},
		"a bad address in a fleet": {
			[]string{strings.Replace(fleet, "10.0.0.9:18000", "10.0.0.9", 1)},
			[]string{"a.yaml:4:1: control: ", "give host:port"},
		},
		"a bad revoked edge": {
			[]string{strings.Replace(fleet, "edge-stolen", "edge_stolen", 1)},
			[]string{"a.yaml:16:13: clusters[0].revoked[0]: "},
		},
		"a field in a fleet": {[]string{strings.Replace(fleet, "workers:", "worker:", 1)}, []string{"a.yaml:9:1: " +
			"worker: unknown field"}},
		"two installations": {[]string{fleet, fleet}, []string{"b.yaml:2:1: domain: the installation is also in a.yaml:2:1"}},
		"several faults": {[]string{"a: [", strings.Replace(fleet, "workers:", "worker:", 1)}, []string{
			"a.yaml",
			"b.yaml:9",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tc.in...)
			if err == nil {
				t.Fatal("there is no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want it to say %q", err, want)
				}
			}
		})
	}
}
