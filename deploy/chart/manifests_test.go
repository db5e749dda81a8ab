package chart_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/internal/kubetest"
)

const manifestHeader = "# Written by `make update-golden` from the template of deploy/chart: change it there.\n"

// manifests maps the files that the chart is the source of, below deploy, to their templates. The values are those of
// manifests-values.yaml and these.
var manifests = []struct {
	set   values
	files map[string]string
}{
	{"checkAPIs: false", map[string]string{
		"kubernetes/policy.yaml":        "policy.yaml",
		"kubernetes/settings.yaml":      "settings.yaml",
		"kubernetes/controller.yaml":    "controller.yaml",
		"kubernetes/webhook.yaml":       "webhook.yaml",
		"kubernetes/networkpolicy.yaml": "networkpolicy.yaml",
		"kubernetes/xds-server.yaml":    "xds-server.yaml",
		"kubernetes/viewer.yaml":        "viewer.yaml",
		"kubernetes/gateway.yaml":       "gateway.yaml",
	}},
	{everything + "\ncheckAPIs: false", map[string]string{
		"kubernetes/page-tokens/page.yaml":                 "page.yaml",
		"kubernetes/webhook-cert-manager/certificate.yaml": "webhook-certificate.yaml",
		"monitoring/podmonitor.yaml":                       "metrics-podmonitor.yaml",
		"monitoring/networkpolicy.yaml":                    "metrics-networkpolicy.yaml",
		"runtime-extension/runtime-extension.yaml":         "extension.yaml",
		"runtime-extension/certificate.yaml":               "extension-certificate.yaml",
		"runtime-extension/client.yaml":                    "extension-client.yaml",
		"runtime-extension/extensionconfig.yaml":           "extension-config.yaml",
	}},
}

var (
	// source is what Helm prints before each object.
	source = regexp.MustCompile(`(?m)^---\n# Source: fairlead/templates/(\S+)\n`)
	// settingsHash restarts Pods. Only a release of Helm can compute it: a kustomization changes settings afterwards.
	settingsHash = regexp.MustCompile(`(?m)^      annotations:\n        fairlead\.dev/settings: .*\n`)
	// keep is for Helm alone.
	keep = regexp.MustCompile(`(?m)^  annotations: \{helm\.sh/resource-policy: keep\}\n`)
)

// byTemplate returns the text of each template for the kustomizations.
func byTemplate(t *testing.T, set values) map[string]string {
	t.Helper()
	common, err := os.ReadFile("manifests-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out, stderr, err := template(t, values(common), set)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	documents := map[string][]string{}
	names := source.FindAllStringSubmatch(out, -1)
	for i, text := range source.Split(out, -1)[1:] {
		name := names[i][1]
		text = keep.ReplaceAllString(settingsHash.ReplaceAllString(strings.TrimSpace(text), ""), "")
		documents[name] = append(documents[name], text+"\n")
	}
	all := map[string]string{}
	for name, texts := range documents {
		order := positions(t, name)
		slices.SortStableFunc(texts, func(a, b string) int { return order(a) - order(b) })
		all[name] = strings.Join(texts, "---\n")
	}
	return all
}

// positions returns a function for the place of an object in its template. Helm sorts objects by their kinds, which
// would separate comments from what they are about.
func positions(t *testing.T, name string) func(document string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder, "templates", name))
	if err != nil {
		t.Fatal(err)
	}
	return func(document string) int {
		for _, o := range decode(t, document) {
			kind := "kind: " + o.GetKind() + "\n"
			for _, place := range []string{
				kind + "metadata:\n  name: " + o.GetName() + "\n", kind, "fairlead.disruptionBudget",
			} {
				if at := strings.Index(string(data), place); at >= 0 {
					return at
				}
			}
		}
		return -1
	}
}

// TestManifestsMatchTheCode: the chart is the source of the kustomizations.
func TestManifestsMatchTheCode(t *testing.T) {
	for _, m := range manifests {
		rendered := byTemplate(t, m.set)
		for file, name := range m.files {
			golden.CheckFile(t, filepath.Join("..", file), []byte(manifestHeader+rendered[name]))
		}
	}
}

// TestCopiesMatchTheCode: a chart cannot refer to files outside of its folder.
func TestCopiesMatchTheCode(t *testing.T) {
	for copied, original := range map[string]string{
		"files/crd/fairlead.dev_tunnels.yaml":        "../kubernetes/crd/fairlead.dev_tunnels.yaml",
		"files/crd/fairlead.dev_remotenetworks.yaml": "../kubernetes/crd/fairlead.dev_remotenetworks.yaml",
		"files/rules.yaml":                           "../monitoring/rules.yaml",
		"files/dashboard.json":                       "../monitoring/dashboard.json",
	} {
		data, err := os.ReadFile(original)
		if err != nil {
			t.Fatal(err)
		}
		golden.CheckFile(t, filepath.Join(folder, copied), data)
	}
}

// kustomize returns the objects of a kustomization with resources and components, given by their folders below deploy.
func kustomize(t *testing.T, more string, resources, components []string) objects {
	t.Helper()
	all := objects{}
	for _, o := range kubetest.KustomizeUser(t, resources, components, more) {
		all[o.GetKind()+"/"+o.GetName()] = o
	}
	return all
}

// TestComponentsAreTheSameAsValues: a component of kustomize has the effect of the value for the same option.
func TestComponentsAreTheSameAsValues(t *testing.T) {
	for component, set := range map[string]values{
		"":                                "{}",
		"kubernetes/page":                 "page: {serve: loopback}",
		"kubernetes/page-tokens":          "page: {serve: service}",
		"kubernetes/webhook-cert-manager": "webhook: {certManager: true}",
		"kubernetes/without-net-admin":    "gateway: {netAdmin: false}",
		"monitoring":                      "metrics: {enabled: true}",
	} {
		t.Run(component, func(t *testing.T) {
			t.Parallel()
			var components []string
			if component != "" {
				components = []string{component}
			}
			built := kustomize(t, "", []string{"kubernetes"}, components)
			var chart strings.Builder
			for _, text := range byTemplate(t, set) {
				chart.WriteString("---\n" + text)
			}
			want := decode(t, chart.String())
			compare(t, built, want)
		})
	}
}

// compare reports how the objects of a kustomization differ from the ones of the chart, without what only one of them
// can have: the Namespace, and what Helm keeps and tests.
func compare(t *testing.T, built, want objects) {
	t.Helper()
	delete(built, "Namespace/"+namespace)
	maps.DeleteFunc(want, func(key string, _ *object) bool { return strings.HasSuffix(key, "/fairlead-test") })
	for _, kind := range []string{"tunnels", "remotenetworks"} {
		crd := want["CustomResourceDefinition/"+kind+".fairlead.dev"]
		annotations := crd.GetAnnotations()
		if annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("Helm would delete the type, and all %s, with the release", kind)
		}
		delete(annotations, "helm.sh/resource-policy")
		crd.SetAnnotations(annotations)
	}
	for _, key := range changed(built, want) {
		switch {
		case built[key] == nil:
			t.Errorf("the kustomization has no %s", key)
		case want[key] == nil:
			t.Errorf("the chart has no %s", key)
		default:
			t.Errorf("%s is\n%s\nin the chart\n%s", key, text(built[key].Object), text(want[key].Object))
		}
	}
}

// TestPatchesAreTheSameAsKustomize: users know how kustomize merges, so the chart merges in the same way.
func TestPatchesAreTheSameAsKustomize(t *testing.T) {
	for name, patch := range map[string]string{
		"a field": `{apiVersion: apps/v1, kind: Deployment, metadata: {name: controller}, spec: {replicas: 5}}`,
		"a container": `{apiVersion: apps/v1, kind: Deployment, metadata: {name: xds-server}, spec: {template: {spec:
			{containers: [{name: xds-server, env: [{name: GOGC, value: "50"}], resources: {limits: {memory: 8Gi}}},
			{name: beside, image: beside:v1}]}}}}`,
		"volumes and mounts": `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: gateway}, spec: {template: {spec:
			{containers: [{name: gateway, volumeMounts: [{name: mine, mountPath: /mine}, {name: state, mountPath:
			/var/lib/fairlead, subPath: x}]}], volumes: [{name: mine, emptyDir: {}}]}}}}`,
		"ports of a container": `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: gateway}, spec: {template: {spec:
			{containers: [{name: gateway, ports: [{containerPort: 8443, hostPort: 443}]}]}}}}`,
		"ports of a Service": `{apiVersion: v1, kind: Service, metadata: {name: gateway}, spec: {ports:
			[{port: 6443, nodePort: 30443}]}}`,
		"a list without a key": `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name:
			fairlead-viewer}, rules: [{apiGroups: [fairlead.dev], resources: [tunnels], verbs: [list]}]}`,
		"scheduling": `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: gateway}, spec: {template: {spec:
			{tolerations: [{key: a, operator: Exists}], nodeSelector: {pool: edge}, affinity: null,
			topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway,
			maxSkew: 2}]}}}}`,
		"nothing of a map": `{apiVersion: v1, kind: ConfigMap, metadata: {name: fairlead-settings}, data: {ROLLOUT: null}}`,
		"without an item": `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: gateway}, spec: {template: {spec:
			{volumes: [{name: token, $patch: delete}]}}}}`,
		"another map": `{apiVersion: v1, kind: Service, metadata: {name: gateway}, spec: {selector: {$patch: replace, a: b}}}`,
		"webhooks": `{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name:
			fairlead-kubeconfigs}, webhooks: [{name: kubeconfigs.fairlead.dev, timeoutSeconds: 5}]}`,
		"annotations":        `{apiVersion: v1, kind: Service, metadata: {name: gateway, annotations: {a: b}}}`,
		"without the object": `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: gateway}, $patch: delete}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flow := strings.NewReplacer("\n", " ", "\t", " ").Replace(patch)
			if !strings.Contains(flow, "kind: ClusterRole") && !strings.Contains(flow, "kind: Mutating") {
				flow = strings.Replace(flow, "metadata: {", "metadata: {namespace: fairlead-system, ", 1)
			}
			built := kustomize(t, "patches: [{patch: '"+flow+"'}]\n", []string{"kubernetes"}, nil)
			var chart strings.Builder
			for _, text := range byTemplate(t, values("patches: ["+flow+"]")) {
				chart.WriteString("---\n" + text)
			}
			want := decode(t, chart.String())
			for _, all := range []objects{built, want} {
				for _, o := range all {
					sortLists(o.Object)
				}
			}
			compare(t, built, want)
			if len(changed(decode(t, chart.String()), renderOnce(t, "{image: {tag: dev}}"))) == 0 {
				t.Error("the patch has no effect")
			}
		})
	}
}

// sortLists sorts all lists of maps, because the order of the items of a merged list has no meaning.
func sortLists(value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, inner := range v {
			sortLists(inner)
		}
	case []any:
		for _, inner := range v {
			sortLists(inner)
		}
		slices.SortStableFunc(v, func(a, b any) int {
			_, first := a.(map[string]any)
			_, second := b.(map[string]any)
			if !first || !second {
				return 0
			}
			return strings.Compare(text(a), text(b))
		})
	}
}
