package source_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/source"
)

const fleetSeed = `domain: tunnels.example.com
public: gw.example.com:443
control: 10.0.0.1:18000
gateways: [{name: gateway-0, peer: 10.0.0.2:443}]
clusters:
- {namespace: prod, name: c1, id: aaaaaaaaaaaaaaaaaaaa, apiServer: 127.0.0.1:6443, others: ["10.0.0.9:6443"], extraNames: [api.example.com], limits: {connections: 5}}
`

// FuzzLoad tests arbitrary files of a fleet and of Kubernetes objects. An accepted fleet is valid, whichever way it
// was read, and each problem names its file.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		"", fleetSeed, settings + objects, objects, networkObjects, "---\n...\n---",
		"kind: List\napiVersion: v1\nitems: [" + strings.Repeat("{kind: List, items: [", 50) + strings.Repeat("]}", 50) + "]",
		"a: &a [*a]", "kind: ClusterList\nitems: {a: b}\n", "? [a, b]\n: c\n", "x: !!float .nan\n",
		"kind: Cluster\napiVersion: cluster.x-k8s.io/v1beta1\nmetadata: {name: [1]}\n",
		"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n" +
			"c: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c,*c,*c]\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		loaded, err := source.Load([]source.Input{{Name: "a.yaml", Data: data}}, nil)
		if err == nil {
			if problem := loaded.Fleet.Installation.Validate(); problem != nil {
				t.Errorf("the installation is not valid: %v", problem)
			}
			for _, c := range loaded.Fleet.Clusters {
				if problem := c.Validate(); problem != nil && c.Network == nil && !c.Egress {
					t.Errorf("the workload cluster %s is not valid: %v", c.Key, problem)
				}
			}
		}
		fleet, parseErr := source.Parse(data)
		if parseErr != nil {
			return
		}
		if err != nil {
			return // Load also accepts objects and lists, which are not a fleet
		}
		if diff := cmp.Diff(fleet, loaded.Fleet); diff != "" && len(fleet.Clusters) > 0 {
			t.Errorf("read as a file of a fleet it is another: %s", diff)
		}
	})
}
