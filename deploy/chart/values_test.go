package chart_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	gatewayPod = "spec.template.spec."
	container  = gatewayPod + "containers.0."
	controller = "Deployment/controller"
	xdsServer  = "Deployment/xds-server"
	gateway    = "StatefulSet/gateway"
	public     = settings + " data.PUBLIC_SERVICE."
	settings   = "ConfigMap/fairlead-settings"
	extension  = "Deployment/runtime-extension"
	webhooks   = "MutatingWebhookConfiguration/fairlead-kubeconfigs"
)

// effect is what a value changes.
type effect struct {
	given values // other values, with and without which the effect is compared
	set   values // the value
	// want maps "Kind/name path" to the value there as YAML. "contains x" stands for a list that contains x, "exists" and
	// "absent" for the object or the field.
	want map[string]string
	// changes lists the objects that differ. If it is empty, they are the ones of want.
	changes []string
}

// effects has one entry for each value of values.yaml.
var effects = map[string]effect{
	"tunnelDomain": {
		set: "tunnelDomain: t.example.org",
		want: map[string]string{
			settings + " data.TUNNEL_DOMAIN":  "t.example.org",
			settings + " data.PUBLIC_ADDRESS": "gateway.t.example.org:443",
		},
		changes: []string{settings, controller, xdsServer, gateway},
	},
	"publicAddress": {
		set:     "publicAddress: edges.example.org:8443",
		want:    map[string]string{settings + " data.PUBLIC_ADDRESS": "edges.example.org:8443"},
		changes: []string{settings, controller, xdsServer},
	},
	"apiserverAddress": {
		set:     "apiserverAddress: clients.example.org:6443",
		want:    map[string]string{settings + " data.APISERVER_ADDRESS": "clients.example.org:6443"},
		changes: []string{settings, controller},
	},
	"connectAddress": {
		set:     "connectAddress: clients.example.org:3128",
		want:    map[string]string{settings + " data.CONNECT_ADDRESS": "clients.example.org:3128"},
		changes: []string{settings, controller},
	},
	"replicaAddress": {
		set:     "replicaAddress: gateway-{i}.example.org:443",
		want:    map[string]string{settings + " data.REPLICA_ADDRESS": "gateway-{i}.example.org:443"},
		changes: []string{settings, xdsServer},
	},
	"rollout": {
		set:     "rollout: immediate",
		want:    map[string]string{settings + " data.ROLLOUT": "immediate"},
		changes: []string{settings, controller},
	},
	"image.registry": {
		set: "image: {registry: registry.example.org/x/}",
		want: map[string]string{
			controller + " " + container + "image":      "registry.example.org/x/fairlead-controller:dev",
			xdsServer + " " + container + "image":       "registry.example.org/x/fairlead-xds-server:dev",
			gateway + " " + container + "image":         "registry.example.org/x/fairlead-gateway:dev",
			"Pod/fairlead-test spec.containers.0.image": "registry.example.org/x/fairlead-cli:dev",
			settings + " data.EDGE_IMAGE":               "registry.example.org/x/fairlead-edge:dev",
		},
	},
	"image.tag": {
		set: "image: {tag: v9}",
		want: map[string]string{
			controller + " " + container + "image":      "fairlead-controller:v9",
			xdsServer + " " + container + "image":       "fairlead-xds-server:v9",
			gateway + " " + container + "image":         "fairlead-gateway:v9",
			"Pod/fairlead-test spec.containers.0.image": "fairlead-cli:v9",
			settings + " data.EDGE_IMAGE":               "fairlead-edge:v9",
		},
	},
	"edgeImage": {
		given: "runtimeExtension: {enabled: true}",
		set:   "edgeImage: registry.example.org/edge:v1",
		want:  map[string]string{settings + " data.EDGE_IMAGE": "registry.example.org/edge:v1"},
		// both restart
		changes: []string{settings, controller, extension},
	},
	"priorityClassName": {
		given: "runtimeExtension: {enabled: true}",
		set:   "priorityClassName: high",
		want: map[string]string{
			controller + " " + gatewayPod + "priorityClassName": "high",
			xdsServer + " " + gatewayPod + "priorityClassName":  "high",
			gateway + " " + gatewayPod + "priorityClassName":    "high",
			extension + " " + gatewayPod + "priorityClassName":  "high",
		},
	},
	"disruptionBudget": {
		given: "runtimeExtension: {enabled: true}",
		set:   "disruptionBudget: {minAvailable: 50%, maxUnavailable: null}",
		want: map[string]string{
			"PodDisruptionBudget/controller spec.minAvailable":        "50%",
			"PodDisruptionBudget/xds-server spec.minAvailable":        "50%",
			"PodDisruptionBudget/gateway spec.minAvailable":           "50%",
			"PodDisruptionBudget/runtime-extension spec.minAvailable": "50%",
		},
	},
	"image.digests": {
		given: "runtimeExtension: {enabled: true}",
		set: values("image: {registry: r, digests: {" + strings.Join([]string{
			"controller: " + digest, "xds-server: " + digest, "gateway: " + digest, "cli: " + digest, "edge: " + digest,
			"runtime-extension: " + digest,
		}, ", ") + "}}"),
		want: map[string]string{
			controller + " " + container + "image":      "r/fairlead-controller@" + digest,
			xdsServer + " " + container + "image":       "r/fairlead-xds-server@" + digest,
			gateway + " " + container + "image":         "r/fairlead-gateway@" + digest,
			extension + " " + container + "image":       "r/fairlead-runtime-extension@" + digest,
			settings + " data.EDGE_IMAGE":               "r/fairlead-edge@" + digest,
			"Pod/fairlead-test spec.containers.0.image": "r/fairlead-cli@" + digest,
		},
	},
	"image.pullPolicy": {
		given: "runtimeExtension: {enabled: true}",
		set:   "image: {pullPolicy: Always}",
		want: map[string]string{
			controller + " " + container + "imagePullPolicy":      "Always",
			xdsServer + " " + container + "imagePullPolicy":       "Always",
			gateway + " " + container + "imagePullPolicy":         "Always",
			extension + " " + container + "imagePullPolicy":       "Always",
			"Pod/fairlead-test spec.containers.0.imagePullPolicy": "Always",
		},
	},
	"image.pullSecrets": {
		given: "runtimeExtension: {enabled: true}",
		set:   "image: {pullSecrets: [mine]}",
		want: map[string]string{
			controller + " " + gatewayPod + "imagePullSecrets": "- name: mine",
			xdsServer + " " + gatewayPod + "imagePullSecrets":  "- name: mine",
			gateway + " " + gatewayPod + "imagePullSecrets":    "- name: mine",
			extension + " " + gatewayPod + "imagePullSecrets":  "- name: mine",
			"Pod/fairlead-test spec.imagePullSecrets":          "- name: mine",
		},
	},
	"gateway.perTunnel": {
		set:     "gateway: {perTunnel: 2}",
		want:    map[string]string{settings + " data.GATEWAYS_PER_TUNNEL": `"2"`},
		changes: []string{settings, gateway, xdsServer, controller},
	},
	"gateway.trafficDistribution": {
		set:  "gateway: {trafficDistribution: PreferClose}",
		want: map[string]string{"Service/gateway spec.trafficDistribution": "PreferClose"},
	},
	"gateway.workers": {
		set:     "gateway: {workers: 4}",
		want:    map[string]string{settings + " data.GATEWAY_WORKERS": `"4"`},
		changes: []string{settings, xdsServer, gateway},
	},
	"gateway.netAdmin": {
		set: "gateway: {netAdmin: false}",
		want: map[string]string{
			gateway + " " + container + "args":                                     "contains --net-admin=false",
			gateway + " " + container + "securityContext.capabilities":             "drop:\n- ALL",
			gateway + " " + container + "securityContext.allowPrivilegeEscalation": "false",
		},
	},
	"gateway.proxyProtocolFrom": {
		set: `gateway: {proxyProtocolFrom: [192.0.2.0/24, "2001:db8::/64"]}`,
		want: map[string]string{
			gateway + " " + container + "args":     "contains --proxy-protocol-from=192.0.2.0/24,2001:db8::/64",
			settings + " data.GATEWAYS_PER_TUNNEL": `"0"`,
		},
		changes: []string{settings, xdsServer, controller, gateway},
	},
	"publicService.type": {
		set:     "publicService: {type: ClusterIP}",
		want:    map[string]string{public + "spec.type": "ClusterIP", public + "spec.externalTrafficPolicy": "absent"},
		changes: []string{settings, controller},
	},
	"publicService.annotations": {
		set:     "publicService: {annotations: {example.org/scheme: internal}}",
		want:    map[string]string{public + "metadata.annotations": "example.org/scheme: internal"},
		changes: []string{settings, controller},
	},
	"publicService.loadBalancerClass": {
		set:     "publicService: {loadBalancerClass: example.org/nlb}",
		want:    map[string]string{public + "spec.loadBalancerClass": "example.org/nlb"},
		changes: []string{settings, controller},
	},
	"publicService.sourceRanges": {
		set:     "publicService: {sourceRanges: [192.0.2.0/24]}",
		want:    map[string]string{public + "spec.loadBalancerSourceRanges": "- 192.0.2.0/24"},
		changes: []string{settings, controller},
	},
	"publicService.trafficPolicy": {
		set:     "publicService: {trafficPolicy: Cluster}",
		want:    map[string]string{public + "spec.externalTrafficPolicy": "Cluster"},
		changes: []string{settings, controller},
	},
	"ipFamilyPolicy": {
		given: `{runtimeExtension: {enabled: true}, page: {serve: service}}`,
		set:   "ipFamilyPolicy: PreferDualStack",
		want: map[string]string{
			public + "spec.ipFamilyPolicy":                    "PreferDualStack",
			"Service/gateway spec.ipFamilyPolicy":             "PreferDualStack",
			"Service/gateway-peers spec.ipFamilyPolicy":       "PreferDualStack",
			"Service/xds-server spec.ipFamilyPolicy":          "PreferDualStack",
			"Service/xds-server-replicas spec.ipFamilyPolicy": "PreferDualStack",
			"Service/fairlead-webhook spec.ipFamilyPolicy":    "PreferDualStack",
			"Service/fairlead-page spec.ipFamilyPolicy":       "PreferDualStack",
			"Service/runtime-extension spec.ipFamilyPolicy":   "PreferDualStack",
		},
		changes: []string{
			settings, controller, "Service/gateway", "Service/gateway-peers", "Service/xds-server",
			"Service/xds-server-replicas", "Service/fairlead-webhook", "Service/fairlead-page", "Service/runtime-extension",
		},
	},
	"networkPolicy.enabled": {
		given: "{runtimeExtension: {enabled: true}, metrics: {enabled: true}}",
		set:   "networkPolicy: {enabled: false}",
		want: map[string]string{
			"NetworkPolicy/fairlead-gateway":           "absent",
			"NetworkPolicy/fairlead-xds-server":        "absent",
			"NetworkPolicy/fairlead-webhook":           "absent",
			"NetworkPolicy/fairlead-runtime-extension": "absent",
			"NetworkPolicy/fairlead-metrics":           "absent",
			"NetworkPolicy/fairlead-test":              "absent",
		},
	},
	"networkPolicy.clientNamespaces": {
		set: "networkPolicy: {clientNamespaces: [argocd]}",
		want: map[string]string{
			policy + ".3.namespaceSelector.matchExpressions.0.values": "- argocd",
		},
	},
	"networkPolicy.clientNetworks": {
		set: "networkPolicy: {clientNetworks: [192.0.2.0/24]}",
		want: map[string]string{
			policy + ".4.ipBlock": "cidr: 192.0.2.0/24",
		},
	},
	"networkPolicy.podNetworks": {
		set: `networkPolicy: {podNetworks: [10.0.0.0/8, "fd00::/8", 172.16.0.0/12]}`,
		want: map[string]string{
			"NetworkPolicy/fairlead-webhook spec.ingress.0.from.0.ipBlock.except": "- 10.0.0.0/8\n- 172.16.0.0/12",
			"NetworkPolicy/fairlead-webhook spec.ingress.0.from.1.ipBlock.except": "- fd00::/8",
		},
	},
	"metrics.enabled": {
		set: "metrics: {enabled: true}",
		want: map[string]string{
			controller + " " + container + "args":                 "contains --metrics-listen=:9090",
			xdsServer + " " + container + "args":                  "contains --metrics-listen=:9090",
			gateway + " " + container + "args":                    "contains --metrics-listen=:9090",
			"PodMonitor/fairlead spec.podMetricsEndpoints.0.port": "metrics",
			// A default of the type: without it Argo CD would report a difference.
			"PodMonitor/fairlead spec.podMetricsEndpoints.0.relabelings.0.action": "replace",
			"PrometheusRule/fairlead spec.groups.0.name":                          "fairlead-records",
			"ConfigMap/fairlead-dashboard metadata.labels":                        `grafana_dashboard: "1"`,
			"NetworkPolicy/fairlead-metrics spec.ingress.0.ports.0.port":          "9090",
		},
	},
	"metrics.operator": {
		given: "metrics: {enabled: true}",
		set:   "metrics: {operator: false}",
		want:  map[string]string{"PodMonitor/fairlead": "absent", "PrometheusRule/fairlead": "absent"},
	},
	"metrics.labels": {
		given: "metrics: {enabled: true}",
		set:   "metrics: {labels: {release: mine}}",
		want: map[string]string{
			"PodMonitor/fairlead metadata.labels.release":     "mine",
			"PrometheusRule/fairlead metadata.labels.release": "mine",
		},
	},
	"metrics.namespace": {
		given: "metrics: {enabled: true}",
		set:   "metrics: {namespace: observability}",
		want: map[string]string{
			"NetworkPolicy/fairlead-metrics" + peer: "kubernetes.io/metadata.name: observability",
		},
	},
	"webhook.certManager": {
		set: "webhook: {certManager: true}",
		want: map[string]string{
			controller + " " + container + "args":          "contains --webhook-cert-dir=/etc/fairlead/webhook",
			"Certificate/fairlead-webhook spec.secretName": "fairlead-webhook-certificate",
			"Certificate/fairlead-webhook-ca":              "exists",
			"Issuer/fairlead-webhook":                      "exists",
			"Issuer/fairlead-webhook-ca":                   "exists",
			"ClusterRole/fairlead-controller":              "exists",
			webhooks + " metadata.annotations":             "cert-manager.io/inject-ca-from: fairlead-system/fairlead-webhook",
		},
	},
	"page.serve": {
		set: "page: {serve: service}",
		want: map[string]string{
			xdsServer + " " + container + "args":          "contains --page-listen=:9448",
			"Service/fairlead-page spec.ports.0.port":     "443",
			"ClusterRole/fairlead-xds-server-page":        "exists",
			"ClusterRoleBinding/fairlead-xds-server-page": "exists",
			"ClusterRole/fairlead-page-reader":            "exists",
		},
	},
	"page.certificateSecret": {
		given: "page: {serve: service}",
		set:   "page: {certificateSecret: mine}",
		want:  map[string]string{xdsServer + " " + gatewayPod + "volumes.1.secret.secretName": "mine"},
	},
	"page.host": {
		given: "page: {serve: service}",
		set:   "page: {host: page.example.org}",
		want:  map[string]string{"Ingress/fairlead-page spec.rules.0.host": "page.example.org"},
	},
	"page.ingressClassName": {
		given: "page: {serve: service, host: page.example.org}",
		set:   "page: {ingressClassName: nginx}",
		want:  map[string]string{"Ingress/fairlead-page spec.ingressClassName": "nginx"},
	},
	"page.annotations": {
		given: "page: {serve: service, host: page.example.org}",
		set:   "page: {annotations: {example.org/backend-protocol: HTTPS}}",
		want:  map[string]string{"Ingress/fairlead-page metadata.annotations": "example.org/backend-protocol: HTTPS"},
	},
	"page.parentRefs": {
		given: "page: {serve: service, host: page.example.org}",
		set:   "page: {parentRefs: [{name: public}]}",
		want: map[string]string{
			"Ingress/fairlead-page": "absent",
			"HTTPRoute/fairlead-page spec.parentRefs": "- group: gateway.networking.k8s.io\n  kind: Gateway\n" +
				"  name: public",
			"BackendTLSPolicy/fairlead-page spec.validation.wellKnownCACertificates": "System",
		},
	},
	"page.caConfigMap": {
		given: "page: {serve: service, host: page.example.org, parentRefs: [{name: public}]}",
		set:   "page: {caConfigMap: mine}",
		want: map[string]string{
			"BackendTLSPolicy/fairlead-page spec.validation.caCertificateRefs.0.name": "mine",
		},
	},
	"runtimeExtension.enabled": {
		set: "runtimeExtension: {enabled: registered}",
		want: map[string]string{
			extension + " " + container + "args":            "contains --edge-image=$(EDGE_IMAGE)",
			"ServiceAccount/runtime-extension":              "exists",
			"ClusterRole/fairlead-runtime-extension":        "exists",
			"ClusterRoleBinding/fairlead-runtime-extension": "exists",
			"Service/runtime-extension":                     "exists",
			"PodDisruptionBudget/runtime-extension":         "exists",
			"NetworkPolicy/fairlead-runtime-extension":      "exists",
			"Issuer/runtime-extension":                      "exists",
			"Certificate/runtime-extension":                 "exists",
			"Issuer/fairlead-client-ca":                     "exists",
			"Certificate/fairlead-client-ca":                "exists",
			"Issuer/fairlead-client":                        "exists",
			"Certificate/fairlead-client":                   "exists",
			"ExtensionConfig/fairlead":                      "exists",
		},
	},
	"runtimeExtension.resources": {
		given: "runtimeExtension: {enabled: true}",
		set:   "runtimeExtension: {resources: {limits: {memory: 512Mi}}}",
		want:  map[string]string{extension + " " + container + "resources.limits.memory": "512Mi"},
	},
	"runtimeExtension.capiNamespace": {
		given: "runtimeExtension: {enabled: true}",
		set:   "runtimeExtension: {capiNamespace: capi}",
		want: map[string]string{
			"Issuer/fairlead-client-ca metadata.namespace":      "capi",
			"Issuer/fairlead-client metadata.namespace":         "capi",
			"Certificate/fairlead-client-ca metadata.namespace": "capi",
			"Certificate/fairlead-client metadata.namespace":    "capi",
			"NetworkPolicy/fairlead-runtime-extension" + peer:   "kubernetes.io/metadata.name: capi",
		},
	},
	"extraObjects": {
		set:  "extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}, data: {a: b}}]",
		want: map[string]string{"ConfigMap/mine data": "a: b"},
	},
	"patches": {
		set:  "patches: [{kind: Service, metadata: {name: gateway}, spec: {sessionAffinity: ClientIP}}]",
		want: map[string]string{"Service/gateway spec.sessionAffinity": "ClientIP"},
	},
}

// policy leads to the clients in the NetworkPolicy of the gateways, and peer to the first peer of any NetworkPolicy.
const (
	policy = "NetworkPolicy/fairlead-gateway spec.ingress.1.from"
	peer   = " spec.ingress.0.from.0.namespaceSelector.matchLabels"
)

const digest = "sha256:0123456789012345678901234567890123456789012345678901234567890123"

// Each program has these values.
func init() {
	for group, object := range map[string]string{"controller": controller, "xdsServer": xdsServer, "gateway": gateway} {
		_, name, _ := strings.Cut(object, "/")
		add := func(value, set, path, want string) {
			effects[group+"."+value] = effect{
				set:  values(group + ": {" + value + ": " + set + "}"),
				want: map[string]string{object + " " + path: want},
			}
		}
		add("replicas", "3", "spec.replicas", "3")
		add("resources", "{limits: {memory: 4Gi}}", container+"resources.limits.memory", "4Gi")
		add("args", "[--log-format=json]", container+"args", "contains --log-format=json")
		add(
			"topologySpread", "[{topologyKey: rack, maxSkew: 2, whenUnsatisfiable: DoNotSchedule}]",
			gatewayPod+"topologySpreadConstraints",
			"- labelSelector:\n    matchLabels:\n      app.kubernetes.io/name: "+name+
				"\n  maxSkew: 2\n  topologyKey: rack\n  whenUnsatisfiable: DoNotSchedule",
		)
	}
}

// TestEachValueHasItsEffect renders the chart with and without each value. Only the objects that the value is for may
// differ.
func TestEachValueHasItsEffect(t *testing.T) {
	for name, e := range effects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := renderOnce(t, e.given), render(t, e.given, e.set)
			keys := e.changes
			for where, want := range e.want {
				key, path, _ := strings.Cut(where, " ")
				if len(e.changes) == 0 && !slices.Contains(keys, key) {
					keys = append(keys, key)
				}
				var value any
				if after[key] != nil {
					value = at(after[key].Object, path)
				}
				if !matches(value, want) {
					t.Errorf("%s is\n%s\nwant %s", where, text(value), want)
				}
				if path != "" && before[key] != nil && matches(at(before[key].Object, path), want) {
					t.Errorf("%s is %s also without the value", where, want)
				}
			}
			keys = slices.Sorted(slices.Values(keys))
			if got := changed(before, after); !slices.Equal(got, keys) {
				t.Errorf("these objects change: %v, want %v", got, keys)
			}
		})
	}
	// These two have no effect on one object alone.
	t.Run("commonLabels", testCommonLabels)
	t.Run("checkAPIs", testCheckAPIs)
}

func matches(value any, want string) bool {
	switch part, ok := strings.CutPrefix(want, "contains "); {
	case ok:
		list, _ := value.([]any)
		return slices.ContainsFunc(list, func(item any) bool { return item == part })
	case want == "exists":
		return value != nil
	case want == "absent":
		return value == nil
	}
	return text(value) == want
}

func testCommonLabels(t *testing.T) {
	t.Parallel()
	for key, o := range render(t, "commonLabels: {team: platform}", everything) {
		if strings.HasSuffix(key, "/fairlead-test") {
			continue // a hook, which Helm removes again
		}
		if got := o.GetLabels()["team"]; got != "platform" {
			t.Errorf("%s has the label %q", key, got)
		}
		if template, ok := at(o.Object, "spec.template").(map[string]any); ok &&
			at(template, "metadata.labels.team") != "platform" {
			t.Errorf("the Pods of %s have the labels %v", key, at(template, "metadata.labels"))
		}
		if selector := at(o.Object, "spec.selector.matchLabels.team"); selector != nil {
			t.Errorf("%s selects by the label, so it could not be changed", key)
		}
	}
}

// everything turns on every option.
const everything values = `
metrics: {enabled: true}
webhook: {certManager: true}
page: {serve: service, host: page.example.org}
runtimeExtension: {enabled: registered}
`

func testCheckAPIs(t *testing.T) {
	t.Parallel()
	if _, _, err := templateIn(t, namespace, nil, minimum); err == nil {
		t.Error("a cluster without Cluster API was accepted")
	}
	if _, stderr, err := templateIn(t, namespace, nil, minimum, everything, "checkAPIs: false"); err != nil {
		t.Errorf("%v: %s", err, stderr)
	}
}

// leaves returns the values of the schema and of values.yaml, which have to be the same. A map without properties in
// the schema is one value.
func leaves(t *testing.T) []string {
	t.Helper()
	var schema, defaults map[string]any
	for file, into := range map[string]*map[string]any{"values.schema.json": &schema, "values.yaml": &defaults} {
		data, err := os.ReadFile(folder + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	delete(schema["properties"].(map[string]any), "global") // Helm's own
	var all []string
	var walk func(prefix string, schema, defaults map[string]any)
	walk = func(prefix string, schema, defaults map[string]any) {
		properties := schema["properties"].(map[string]any)
		if got, want := sorted(defaults), sorted(properties); !slices.Equal(got, want) {
			t.Errorf("%svalues.yaml has %v, and the schema %v", prefix, got, want)
		}
		for name, property := range properties {
			inner, _ := property.(map[string]any)
			nested, ok := defaults[name].(map[string]any)
			if _, group := inner["properties"]; group && ok && inner["title"] == nil {
				walk(prefix+name+".", inner, nested)
				continue
			}
			all = append(all, prefix+name)
		}
	}
	walk("", schema, defaults)
	slices.Sort(all)
	return all
}

func sorted(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

func TestTheChartHasAtMost60ValuesAndATestForEach(t *testing.T) {
	all := leaves(t)
	if len(all) > 60 {
		t.Errorf("the chart has %d values", len(all))
	}
	tested := slices.Concat(slices.Collect(maps.Keys(effects)), []string{"commonLabels", "checkAPIs"})
	slices.Sort(tested)
	if !slices.Equal(all, tested) {
		t.Errorf("the values are\n%v\nand the tested ones\n%v", all, tested)
	}
}

// TestErrorsAreOneLineWithTheFix: `helm template` adds a line about its own flag, which `helm install` does not.
func TestErrorsAreOneLineWithTheFix(t *testing.T) {
	for name, tc := range map[string]struct {
		apis []string
		set  values
		want string
	}{
		"no tunnel domain": {served, "{}", "--set tunnelDomain=tunnels.example.com"},
		"no Cluster API":   {nil, minimum, "clusterctl init"},
		"no Prometheus Operator": {
			served[:3], "{tunnelDomain: t.example.org, metrics: {enabled: true}}", "metrics.operator=false",
		},
		"no cert-manager": {
			served[:2], "{tunnelDomain: t.example.org, webhook: {certManager: true}}", "webhook.certManager=false",
		},
		"a Gateway API without BackendTLSPolicy": {
			served[:5],
			"{tunnelDomain: t.example.org, page: {serve: service, host: page.example.org, parentRefs: [{name: public}]}}",
			"needs Gateway API 1.4",
		},
		"gateways that are killed while they drain": {
			served, "{tunnelDomain: t.example.org, gateway: {args: [--drain-timeout=1m30s]}}",
			"add a patch of StatefulSet gateway with spec.template.spec.terminationGracePeriodSeconds: 100",
		},
		"gateways that are killed while they drain, with a patch": {
			served,
			"{tunnelDomain: t.example.org, gateway: {args: [--drain-timeout=1m30s]}, patches: [{kind: StatefulSet, " +
				"metadata: {name: gateway}, spec: {template: {spec: {terminationGracePeriodSeconds: 95}}}}]}",
			"killed after 95 s",
		},
		"a patch for nothing": {
			served, "{tunnelDomain: t.example.org, patches: [{kind: Service, metadata: {name: gatway}}]}",
			"patches[0] selects no object: the chart has no Service with the name gatway",
		},
		"a strange limit": {
			served, "{tunnelDomain: t.example.org, gateway: {resources: {limits: {memory: 1.5Gi}}}}", "use a whole number",
		},
		"PROXY headers behind nodes that replace addresses": {
			served,
			"{tunnelDomain: t.example.org, gateway: {proxyProtocolFrom: [192.0.2.0/24]}, " +
				"publicService: {trafficPolicy: Cluster}}",
			"publicService.trafficPolicy=Local",
		},
		"PROXY headers and gateways that would forward": {
			served,
			"{tunnelDomain: t.example.org, gateway: {proxyProtocolFrom: [192.0.2.0/24], perTunnel: 1}, " +
				"publicService: {trafficPolicy: Local}}",
			"gateway.perTunnel=0",
		},
		"several workers without NET_ADMIN": {
			served, "{tunnelDomain: t.example.org, gateway: {netAdmin: false, workers: 2}}", "more gateway.replicas",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, stderr, err := templateIn(t, namespace, tc.apis, tc.set)
			if err == nil || !strings.Contains(stderr, tc.want) {
				t.Errorf("got %q, want %q", stderr, tc.want)
			}
			message := strings.TrimSuffix(strings.TrimSpace(stderr), "\n\nUse --debug flag to render out invalid YAML")
			if strings.Contains(message, "\n") {
				t.Errorf("the error has several lines: %s", stderr)
			}
		})
	}
}

// TestGatewaysMayDrainForLonger with a longer grace period, and for a shorter time without.
func TestGatewaysMayDrainForLonger(t *testing.T) {
	for _, set := range []values{
		"{gateway: {args: [--drain-timeout=10s]}}",
		"{gateway: {args: [--drain-timeout=1h, --drain-timeout=35s]}}", // the last one counts
		"{gateway: {args: [--drain-timeout=1m30s]}, patches: [{kind: StatefulSet, metadata: {name: gateway}, " +
			"spec: {template: {spec: {terminationGracePeriodSeconds: 100}}}}]}",
	} {
		if _, stderr, err := template(t, minimum, set); err != nil {
			t.Errorf("%s: %v: %s", set, err, stderr)
		}
	}
}

// TestWithoutDisruptionBudgets: Helm merges maps, so an empty one keeps the default, and null removes it.
func TestWithoutDisruptionBudgets(t *testing.T) {
	const set, documented = values("disruptionBudget: null"), "`null`: no PodDisruptionBudgets"
	if v := describe(t, []string{"disruptionBudget"}); len(v) != 1 || !strings.Contains(v[0].comment, documented) {
		t.Errorf("the comments %v do not have %q", v, documented)
	}
	want := []string{
		"PodDisruptionBudget/controller", "PodDisruptionBudget/gateway", "PodDisruptionBudget/runtime-extension",
		"PodDisruptionBudget/xds-server",
	}
	without := render(t, everything, set)
	if got := changed(renderOnce(t, everything), without); !slices.Equal(got, want) {
		t.Errorf("%s changes %v, want %v", set, got, want)
	}
	for _, key := range want {
		if without[key] != nil {
			t.Errorf("there is a %s", key)
		}
	}
}

// TestAnUpgradeLeavesNoClientWithoutATunnel: with PROXY protocol gateways do not forward, so all edges need tunnels to
// all of them before.
func TestAnUpgradeLeavesNoClientWithoutATunnel(t *testing.T) {
	const balancer = "proxyProtocolFrom: [192.0.2.0/24]"
	for name, tc := range map[string]struct {
		set      values
		rejected bool
	}{
		"more gateways than tunnels":    {"gateway: {replicas: 4, " + balancer + "}", true},
		"a number that is not known":    {"gateway: {replicas: null, " + balancer + "}", true},
		"tunnels to all gateways":       {"gateway: {replicas: 3, " + balancer + "}", false},
		"0 is set":                      {"gateway: {replicas: 4, perTunnel: 0, " + balancer + "}", false},
		"no PROXY protocol":             {"gateway: {replicas: 4}", false},
		"all gateways that forward":     {"gateway: {replicas: 4, perTunnel: 100}", false},
		"no rollout that could be held": {"{rollout: immediate, gateway: {replicas: 4, " + balancer + "}}", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, stderr, err := helm(
				t.Context(), t, "template", "fairlead", folder, "--is-upgrade", "--api-versions="+served[0],
				"--values="+minimum.write(t), "--values="+tc.set.write(t),
			)
			if (err != nil) != tc.rejected {
				t.Errorf("%v: %s", err, stderr)
			}
			for _, step := range []string{"set gateway.perTunnel=100", "rollout status statefulset/gateway has ended and"} {
				if tc.rejected && !strings.Contains(stderr, step) {
					t.Errorf("no %q: %s", step, stderr)
				}
			}
			if _, stderr, err := template(t, minimum, tc.set); err != nil {
				t.Errorf("a new installation is rejected: %v: %s", err, stderr)
			}
		})
	}
}

// TestAnAutoscalerSetsTheNumberOfGateways: a rendered number would undo what it did.
func TestAnAutoscalerSetsTheNumberOfGateways(t *testing.T) {
	const set, documented = values("gateway: {replicas: null}"), "`null`: an autoscaler sets it"
	if v := describe(t, []string{"gateway.replicas"}); len(v) != 1 || !strings.Contains(v[0].comment, documented) {
		t.Errorf("the comments %v do not have %q", v, documented)
	}
	before, after := renderOnce(t, "{}"), render(t, set)
	if got := changed(before, after); !slices.Equal(got, []string{gateway}) {
		t.Errorf("%s changes %v", set, got)
	}
	if got := at(after[gateway].Object, "spec.replicas"); got != nil {
		t.Errorf("there are %v gateways", got)
	}
}

// TestTheExtensionIsRegisteredLater: a core manager of Cluster API that starts while an extension is registered and
// does not answer ends after 60 s.
func TestTheExtensionIsRegisteredLater(t *testing.T) {
	enabled, registered := renderOnce(t, "runtimeExtension: {enabled: true}"), renderOnce(t, everything)
	const key = "ExtensionConfig/fairlead"
	if enabled[extension] == nil || enabled[key] != nil || registered[key] == nil {
		t.Errorf("with enabled: true there is %v, with enabled: registered %v", enabled[key], registered[key])
	}
}

// TestHelmKeepsTunnelsAndTheirPolicies: without the policies any user with write access to Tunnels could change the ids
// and records of the Tunnels that are left.
func TestHelmKeepsTunnelsAndTheirPolicies(t *testing.T) {
	var kept []string
	for key, o := range renderOnce(t, everything) {
		if o.GetAnnotations()["helm.sh/resource-policy"] == "keep" {
			kept = append(kept, key)
		}
	}
	slices.Sort(kept)
	want := []string{
		"CustomResourceDefinition/remotenetworks.fairlead.dev", "CustomResourceDefinition/tunnels.fairlead.dev",
	}
	for _, kind := range []string{"ValidatingAdmissionPolicy/tunnel-", "ValidatingAdmissionPolicyBinding/tunnel-"} {
		for _, name := range []string{"copies", "id", "proxy", "status"} {
			want = append(want, kind+name+".fairlead.dev")
		}
	}
	if !slices.Equal(kept, want) {
		t.Errorf("Helm keeps %v, want %v", kept, want)
	}
}

// TestPodsThatAreNotReadyHoldUpNoDrain: by default a PodDisruptionBudget protects running Pods that are not ready, so a
// node with the Pods of a program that does not become ready could not be drained.
func TestPodsThatAreNotReadyHoldUpNoDrain(t *testing.T) {
	var budgets []string
	for key, o := range renderOnce(t, everything) {
		if o.GetKind() != "PodDisruptionBudget" {
			continue
		}
		budgets = append(budgets, o.GetName())
		if got := at(o.Object, "spec.unhealthyPodEvictionPolicy"); got != "AlwaysAllow" {
			t.Errorf("%s has the unhealthyPodEvictionPolicy %v", key, got)
		}
	}
	slices.Sort(budgets)
	if want := []string{"controller", "gateway", "runtime-extension", "xds-server"}; !slices.Equal(budgets, want) {
		t.Errorf("there are budgets of %v, want %v", budgets, want)
	}
}

// TestAddressesMayBeOfIPv6: their brackets mean a list in YAML.
func TestAddressesMayBeOfIPv6(t *testing.T) {
	data := render(t, minimum, `
publicAddress: "[2001:db8::1]:443"
apiserverAddress: "[2001:db8::2]:6443"
connectAddress: "[2001:db8::2]:3128"
replicaAddress: "[2001:db8::1:{i}]:443"`)[settings].Object["data"]
	for key, want := range map[string]string{
		"PUBLIC_ADDRESS": "[2001:db8::1]:443", "APISERVER_ADDRESS": "[2001:db8::2]:6443",
		"CONNECT_ADDRESS": "[2001:db8::2]:3128", "REPLICA_ADDRESS": "[2001:db8::1:{i}]:443",
	} {
		if got := at(map[string]any{"data": data}, "data."+key); got != want {
			t.Errorf("%s is %v, want %s", key, got, want)
		}
	}
}

// TestTheDefaultIsThatOfThePrograms: a chart cannot read it.
func TestTheDefaultIsThatOfThePrograms(t *testing.T) {
	got := at(render(t, minimum)[settings].Object, "data.GATEWAYS_PER_TUNNEL")
	if want := strconv.Itoa(model.DefaultGatewaysPerTunnel); got != want {
		t.Errorf("GATEWAYS_PER_TUNNEL is %v, want %s", got, want)
	}
}

// TestTheSchemaRejects: each value has a type, and a value with a wrong name does not pass unnoticed.
func TestTheSchemaRejects(t *testing.T) {
	for name, set := range map[string]values{
		"an unknown value":                "{replicas: 3}",
		"an unknown value in a group":     "{gateway: {replica: 3}}",
		"more gateways than there can be": "{gateway: {replicas: 101}}",
		"no gateways":                     "{gateway: {replicas: 0}}",
		"a text for the gateways":         "{gateway: {replicas: '2'}}",
		"an address without a port":       "{publicAddress: gateway.example.org}",
		"an address without brackets":     "{publicAddress: '2001:db8::1:443'}",
		"a URL":                           "{apiserverAddress: 'https://gateway.example.org:443'}",
		"one address for all replicas":    "{replicaAddress: gateway.example.org:443}",
		"a domain with a scheme":          "{tunnelDomain: https://example.org}",
		"an unknown digest":               "{image: {digests: {gatway: " + digest + "}}}",
		"a short digest":                  "{image: {digests: {gateway: sha256:01}}}",
		"an annotation that is no text":   "{publicService: {annotations: {a: 1}}}",
		"two limits of a budget":          "{disruptionBudget: {minAvailable: 1}}",
		"a priority class of one program": "{gateway: {priorityClassName: high}}",
		"a balancer that is no network":   "{gateway: {proxyProtocolFrom: [192.0.2.1]}}",
		"a patch without a name":          "{patches: [{kind: Service}]}",
		"an unknown way to register":      "{runtimeExtension: {enabled: 'yes'}}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, stderr, err := template(t, minimum, set); err == nil || !strings.Contains(stderr, "schema") {
				t.Errorf("%s is accepted: %v %s", set, err, stderr)
			}
		})
	}
	data, err := os.ReadFile(folder + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(data) {
		t.Error("the schema is no JSON")
	}
}
