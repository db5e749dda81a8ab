package hooks

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	runtimecatalog "sigs.k8s.io/cluster-api/api/runtime/catalog"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/cluster-api/exp/runtime/server"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/capi/inject"
)

var (
	defaults = inject.Variable{TunnelDomain: "tunnels.example.com", Image: "fairlead-edge:v1", APIServerPort: 6443}
	now      = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func newExtension(t *testing.T, tunnels client.Reader) *Extension {
	t.Helper()
	e, err := New(defaults, tunnels, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// requesting is the builtin variable of a Cluster that requests edges.
const requesting = `{"cluster":{"name":"c1","namespace":"prod","metadata":{"labels":{"fairlead.dev/tunnel":"enabled"},"annotations":{"fairlead.dev/edges":"control-plane"}}}}`

const template = `{"apiVersion":"controlplane.cluster.x-k8s.io/v1beta2","kind":"KubeadmControlPlaneTemplate","spec":{"template":{"spec":{"kubeadmConfigSpec":{"files":[{"path":"/etc/motd","content":"x"}]}}}}}`

func variable(name, value string) runtimehooksv1.Variable {
	v := runtimehooksv1.Variable{Name: name}
	v.Value.Raw = []byte(value)
	return v
}

const fairlead = `{"tunnelDomain":"tunnels.example.com","image":"fairlead-edge:v1","apiServerPort":6443}`

var holder = runtimehooksv1.HolderReference{
	APIVersion: "cluster.x-k8s.io/v1beta2",
	Kind:       "Cluster",
	Namespace:  "prod",
	Name:       "c1",
	FieldPath:  "spec.controlPlaneRef",
}

func generate(
	variables []runtimehooksv1.Variable, items ...runtimehooksv1.GeneratePatchesRequestItem,
) *runtimehooksv1.GeneratePatchesRequest {
	return &runtimehooksv1.GeneratePatchesRequest{Variables: variables, Items: items}
}

func item(object string, variables ...runtimehooksv1.Variable) runtimehooksv1.GeneratePatchesRequestItem {
	return runtimehooksv1.GeneratePatchesRequestItem{
		UID:             "u",
		HolderReference: holder,
		Object:          runtime.RawExtension{Raw: []byte(object)},
		Variables:       variables,
	}
}

// patched applies a response to a template.
func patched(t *testing.T, response runtimehooksv1.GeneratePatchesResponse, object string) map[string]any {
	t.Helper()
	for _, i := range response.Items {
		after, err := jsonpatch.MergePatch([]byte(object), i.Patch)
		if err != nil || i.UID != "u" || i.PatchType != runtimehooksv1.JSONMergePatchType {
			t.Fatalf("%v: %v", i, err)
		}
		object = string(after)
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(object), &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}

func TestGeneratePatches(t *testing.T) {
	e := newExtension(t, nil)
	request := generate(
		[]runtimehooksv1.Variable{variable("builtin", requesting), variable("fairlead", fairlead)}, item(template),
	)
	var response runtimehooksv1.GeneratePatchesResponse
	e.GeneratePatches(t.Context(), request, &response)
	if response.Status != runtimehooksv1.ResponseStatusSuccess || len(response.Items) != 1 {
		t.Fatalf("%v", response)
	}
	var want map[string]any
	if err := json.Unmarshal([]byte(template), &want); err != nil {
		t.Fatal(err)
	}
	machines := want["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	config := machines["kubeadmConfigSpec"].(map[string]any)
	if err := inject.Fields(config, options(defaults, "prod", "c1")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, patched(t, response, template)); diff != "" {
		t.Error(diff)
	}
	for range 20 {
		var again runtimehooksv1.GeneratePatchesResponse
		e.GeneratePatches(t.Context(), request, &again)
		if diff := cmp.Diff(response, again); diff != "" {
			t.Fatalf("the same request has another answer: %s", diff)
		}
	}
	// A patched template is not patched again.
	after, err := json.Marshal(patched(t, response, template))
	if err != nil {
		t.Fatal(err)
	}
	var second runtimehooksv1.GeneratePatchesResponse
	e.GeneratePatches(t.Context(), generate(request.Variables, item(string(after))), &second)
	if len(second.Items) != 1 || string(second.Items[0].Patch) != "{}" {
		t.Errorf("%v", second)
	}
}

func TestGeneratePatchesLeavesAlone(t *testing.T) {
	other := item(template)
	other.HolderReference.FieldPath = "spec.infrastructureRef"
	tests := map[string]*runtimehooksv1.GeneratePatchesRequest{
		"a Cluster without the annotation": generate(
			[]runtimehooksv1.Variable{
				variable(
					"builtin",
					`{"cluster":{"name":"c1","namespace":"prod","metadata":{"labels":{"fairlead.dev/tunnel":"enabled"}}}}`,
				),
			},
			item(template),
		),
		"a Cluster without metadata": generate(
			[]runtimehooksv1.Variable{variable("builtin", `{"cluster":{"name":"c1","namespace":"prod"}}`)},
			item(template),
		),
		"other templates": generate([]runtimehooksv1.Variable{variable("builtin", requesting)}, other),
		"another kind of control plane": generate(
			[]runtimehooksv1.Variable{variable("builtin", requesting)}, item(strings.ReplaceAll(template, "Kubeadm", "RKE2")),
		),
	}
	for name, request := range tests {
		t.Run(name, func(t *testing.T) {
			var response runtimehooksv1.GeneratePatchesResponse
			newExtension(t, nil).GeneratePatches(t.Context(), request, &response)
			if response.Status != runtimehooksv1.ResponseStatusSuccess || len(response.Items) > 0 {
				t.Errorf("%v", response)
			}
		})
	}
}

// TestControlPlaneOverridesTheVariable: Cluster.spec.topology.controlPlane.variables.overrides is sent with the item.
func TestControlPlaneOverridesTheVariable(t *testing.T) {
	request := generate([]runtimehooksv1.Variable{variable("builtin", requesting), variable("fairlead", fairlead)},
		item(template, variable("fairlead", strings.Replace(fairlead, "v1", "v2", 1))))
	var response runtimehooksv1.GeneratePatchesResponse
	newExtension(t, nil).GeneratePatches(t.Context(), request, &response)
	if len(response.Items) != 1 || !strings.Contains(string(response.Items[0].Patch), "fairlead-edge:v2") {
		t.Errorf("%v", response)
	}
}

func TestRejections(t *testing.T) {
	good := []runtimehooksv1.Variable{variable("builtin", requesting), variable("fairlead", fairlead)}
	with := func(old, replacement string) []runtimehooksv1.Variable {
		return []runtimehooksv1.Variable{
			variable("builtin", strings.Replace(requesting, old, replacement, 1)),
			variable("fairlead", fairlead),
		}
	}
	tests := map[string]struct {
		variables []runtimehooksv1.Variable
		object    string
		generate  string // message of GeneratePatches
		validate  string // message of ValidateTopology
	}{
		"no variable": {good[:1], template, "variable fairlead not found", "variable fairlead not found"},
		"no builtin":  {good[1:], template, "variable builtin not found", "variable builtin not found"},
		"a hostname too long": {
			with(`"name":"c1"`, `"name":"`+strings.Repeat("a", 64)+`"`),
			template,
			"gives no usable tunnel hostname",
			"gives no usable tunnel hostname",
		},
		"no label": {
			with(`"labels":{"fairlead.dev/tunnel":"enabled"},`, ""),
			template,
			"",
			"set it to enabled",
		},
		"another annotation": {with("control-plane", "workers"), template, "", "is unknown: write control-plane"},
		"another control plane": {
			good,
			strings.ReplaceAll(template, "Kubeadm", "RKE2"),
			"",
			"cannot add edges to a RKE2ControlPlaneTemplate",
		},
		"what others have undone": {good, template, "", "files of kubeadmConfigSpec lacks"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := newExtension(t, nil)
			var patches runtimehooksv1.GeneratePatchesResponse
			e.GeneratePatches(t.Context(), generate(tc.variables, item(tc.object)), &patches)
			checkMessage(t, patches.CommonResponse, tc.generate)
			var validation runtimehooksv1.ValidateTopologyResponse
			i := item(tc.object)
			e.ValidateTopology(t.Context(), &runtimehooksv1.ValidateTopologyRequest{
				Variables: tc.variables, Items: []*runtimehooksv1.ValidateTopologyRequestItem{{
					HolderReference: i.HolderReference,
					Object:          i.Object,
				}},
			}, &validation)
			checkMessage(t, validation.CommonResponse, tc.validate)
		})
	}
}

func checkMessage(t *testing.T, response runtimehooksv1.CommonResponse, want string) {
	t.Helper()
	failed := response.Status == runtimehooksv1.ResponseStatusFailure
	if failed != (want != "") || !strings.Contains(response.Message, want) {
		t.Errorf("%v, want %q", response, want)
	}
}

func TestDiscoverVariables(t *testing.T) {
	var response runtimehooksv1.DiscoverVariablesResponse
	newExtension(t, nil).DiscoverVariables(t.Context(), nil, &response)
	if response.Status != runtimehooksv1.ResponseStatusSuccess || len(response.Variables) != 1 {
		t.Fatalf("%v", response)
	}
	if v := response.Variables[0]; v.Name != "fairlead" || string(v.Schema.OpenAPIV3Schema.Default.Raw) != fairlead {
		t.Errorf("%s: %s", v.Name, v.Schema.OpenAPIV3Schema.Default.Raw)
	}
}

// TestServerAcceptsTheHandlers: Cluster API's server checks the types of its handlers.
func TestServerAcceptsTheHandlers(t *testing.T) {
	catalog := runtimecatalog.New()
	if err := runtimehooksv1.AddToCatalog(catalog); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Options{Catalog: catalog})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range newExtension(t, nil).Handlers() {
		if err := s.AddExtensionHandler(h); err != nil {
			t.Error(err)
		}
		if *h.TimeoutSeconds < 1 || *h.TimeoutSeconds > 30 || *h.FailurePolicy != runtimehooksv1.FailurePolicyFail {
			t.Errorf("%s: timeout %d, policy %s", h.Name, *h.TimeoutSeconds, *h.FailurePolicy)
		}
	}
}

func TestDefaultsAreChecked(t *testing.T) {
	for _, v := range []inject.Variable{{Image: "a"}, {TunnelDomain: "t.example.com"}, {
		TunnelDomain: "t.example.com",
		Image:        "a", APIServerPort: -1,
	}} {
		if _, err := New(v, nil, time.Now); err == nil || !strings.Contains(err.Error(), "fairlead") {
			t.Errorf("%v: %v", v, err)
		}
	}
}
