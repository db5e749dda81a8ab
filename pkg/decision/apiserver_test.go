package decision_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
)

// addressPatterns returns what the CustomResourceDefinition requires of the addresses of apiservers.
func addressPatterns(t *testing.T) (first, other *regexp.Regexp) {
	t.Helper()
	data, err := os.ReadFile("../../deploy/kubernetes/crd/fairlead.dev_tunnels.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd map[string]any
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
	if err != nil || len(versions) != 1 {
		t.Fatalf("%d versions, %v", len(versions), err)
	}
	pattern := func(path ...string) *regexp.Regexp {
		path = append([]string{"schema", "openAPIV3Schema", "properties", "spec", "properties", "apiServer"}, path...)
		rules, _, err := unstructured.NestedSlice(
			versions[0].(map[string]any), append(path, "properties", "address", "x-kubernetes-validations")...)
		if err != nil || len(rules) != 1 {
			t.Fatalf("%d rules, %v", len(rules), err)
		}
		_, text, _ := strings.Cut(rules[0].(map[string]any)["rule"].(string), "self.matches('")
		return regexp.MustCompile(strings.TrimSuffix(text, "')"))
	}
	return pattern(), pattern("properties", "others", "items")
}

// TestTheEndpointIsCopiedIfItIsAnAddress: the apiserver would reject any other one in a Tunnel, for ever. Cluster API
// limits only the length of an endpoint's host.
func TestTheEndpointIsCopiedIfItIsAnAddress(t *testing.T) {
	first, other := addressPatterns(t)
	for host, valid := range map[string]bool{
		"192.0.2.10": true, "2001:db8::1": true, "::": true, "::ffff:192.0.2.10": true, "api": true, "api.example.com": true,
		"API.Example.com.": true, "_api.example.com": true, "xn--bcher-kva.example": true,
		"api.example.com:6443": false, "https://api": false, "https://api.example.com:6443/": false, "[fd00::1]": false,
		"fe80::1%eth0": false, "api..example.com": false, "-api": false, "a b": false, ".": false, "api\n": false,
		"bücher.example": false, "\u212aube": false, "192.0.2.0/24": false, strings.Repeat("a", 64): false,
		strings.Repeat("a.", 200): false,
	} {
		for _, edges := range []string{"", v1alpha1.EdgesOnControlPlane} {
			cluster, tunnel := newCluster("c1", "uid"), newTunnel("c1", id("a"), "uid")
			cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: host, Port: 6443}
			cluster.Annotations = map[string]string{v1alpha1.EdgesAnnotation: edges}
			spec := v1alpha1.APIServerSpec{}
			decision.FillAPIServer(&spec, cluster)
			if copied := spec.Address != ""; copied != valid {
				t.Errorf("host %q is copied: %t", host, copied)
			}
			if spec.Address != "" && !first.MatchString(spec.Address) {
				t.Errorf("host %q becomes the address %q, which does not match %s", host, spec.Address, first)
			}
			for _, o := range spec.Others {
				if !other.MatchString(o.Address) {
					t.Errorf("host %q becomes the address %q, which does not match %s", host, o.Address, other)
				}
			}
			tunnel.Spec.APIServer = spec
			if fatal := resolveEndpoint(t, cluster, tunnel).Fatal; (fatal == nil) != valid {
				t.Errorf("host %q: %v", host, fatal)
			}
		}
	}
}

// TestACorrectedEndpointIsServed: what an invalid endpoint has left in the Tunnel must not outlive it.
func TestACorrectedEndpointIsServed(t *testing.T) {
	cluster, tunnel := newCluster("c1", "uid"), newTunnel("c1", id("a"), "uid")
	for _, host := range []string{"https://api", "api.example.com"} {
		cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: host, Port: 6443}
		decision.FillAPIServer(&tunnel.Spec.APIServer, cluster)
		r := resolveEndpoint(t, cluster, tunnel)
		switch {
		case host == "https://api" && (r.Fatal == nil || r.Fatal.Field != "spec.apiServer"):
			t.Errorf("host %q: %v", host, r.Fatal)
		case host != "https://api" && (r.Fatal != nil || r.Cluster.APIServer.Host != host):
			t.Errorf("host %q is served as %s, %v", host, r.Cluster.APIServer, r.Fatal)
		}
	}
}

func resolveEndpoint(t *testing.T, cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) decision.Resolution {
	t.Helper()
	c, ok := decision.CandidateOf(cluster, tunnel)
	if !ok {
		t.Fatal("the Tunnel claims nothing")
	}
	return (&decision.Names{}).Resolve(domain, c)
}
