package netpolicy

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const (
	ingress = networkingv1.PolicyTypeIngress
	egress  = networkingv1.PolicyTypeEgress
)

func newPod(namespace, name, node, app string, ports []corev1.ContainerPort, addresses ...string) pod {
	p := pod{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: ports}}},
	}, node: node}
	for _, address := range addresses {
		p.addresses = append(p.addresses, netip.MustParseAddr(address))
	}
	return p
}

// testState returns three Pods in two namespaces, and policies of the namespace shop.
func testState(t *testing.T, specs ...string) *state {
	t.Helper()
	port := func(name string, protocol corev1.Protocol, number int32) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, Protocol: protocol, ContainerPort: number}
	}
	s := &state{
		namespaces: map[string]labels.Set{"shop": {"team": "a"}, "bank": {"team": "b"}},
		pods: []pod{
			newPod("shop", "web", "node-1", "web",
				[]corev1.ContainerPort{port("http", "TCP", 8080), port("http", "UDP", 8081)}, "10.244.1.2", "fd00::2"),
			newPod("shop", "worker", "node-2", "worker",
				[]corev1.ContainerPort{port("http", "", 9090)}, "10.244.2.2"),
			newPod("bank", "web", "node-1", "web", nil, "fd00::3", "10.244.1.3"),
		},
	}
	for _, spec := range specs {
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "policy"}}
		if err := yaml.UnmarshalStrict([]byte(spec), &policy.Spec); err != nil {
			t.Fatal(err)
		}
		s.policies = append(s.policies, policy)
	}
	return s
}

func TestTranslation(t *testing.T) {
	const to, from = "policyTypes: [Ingress]\ningress: ", "policyTypes: [Egress]\negress: "
	for _, test := range []struct {
		name      string
		specs     []string
		direction networkingv1.PolicyType
		want      []string // nil: not isolated
	}{
		{"no policy", nil, ingress, nil},
		{"a policy of the other direction", []string{from + "[]"}, ingress, nil},
		{"a policy of other Pods", []string{"podSelector: {matchLabels: {app: worker}}\n" + to + "[]"}, ingress, nil},
		{"default deny", []string{"policyTypes: [Ingress, Egress]"}, egress, []string{}},
		{"everything", []string{to + "[{}]"}, ingress, []string{""}},
		{"a port has protocol TCP", []string{to + "[{ports: [{port: 80}]}]"}, ingress, []string{"tcp dport 80"}},
		{
			"a range",
			[]string{to + "[{ports: [{port: 80, endPort: 90, protocol: SCTP}]}]"},
			ingress,
			[]string{"sctp dport 80-90"},
		},
		{"all ports of a protocol", []string{to + "[{ports: [{protocol: UDP}]}]"}, ingress, []string{"meta l4proto udp"}},
		{"a named port is the Pod's own", []string{to + "[{ports: [{port: http}]}]"}, ingress, []string{"tcp dport 8080"}},
		{
			"a named port of another protocol",
			[]string{to + "[{ports: [{port: http, protocol: UDP}]}]"},
			ingress,
			[]string{"udp dport 8081"},
		},
		{"a port that the Pod has not", []string{to + "[{ports: [{port: dns}]}]"}, ingress, []string{}},
		{"a named port of each destination", []string{from + "[{ports: [{port: http}]}]"}, egress, []string{
			"ip daddr 10.244.1.2 tcp dport 8080", "ip daddr 10.244.2.2 tcp dport 9090", "ip6 daddr fd00::2 tcp dport 8080",
		}},
		{
			"a named port of some destinations",
			[]string{from + "[{to: [{podSelector: {matchLabels: {app: worker}}}], ports: [{port: http}]}]"},
			egress,
			[]string{"ip daddr 10.244.2.2 tcp dport 9090"},
		},
		{
			"a named port in a block",
			[]string{from + "[{to: [{ipBlock: {cidr: 10.244.0.0/16, except: [10.244.2.0/24]}}], ports: [{port: http}]}]"},
			egress,
			[]string{"ip daddr 10.244.1.2 tcp dport 8080"},
		},
		{
			"Pods of the policy's namespace",
			[]string{to + "[{from: [{podSelector: {}}]}]"},
			ingress,
			[]string{"ip saddr { 10.244.1.2, 10.244.2.2 }", "ip6 saddr { fd00::2 }"},
		},
		{
			"Pods of namespaces",
			[]string{to + "[{from: [{namespaceSelector: {matchLabels: {team: b}}}]}]"},
			ingress,
			[]string{"ip saddr { 10.244.1.3 }", "ip6 saddr { fd00::3 }"},
		},
		{
			"one peer with both selectors is narrower than two peers",
			[]string{to + "[{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: worker}}}]}]"},
			ingress,
			[]string{"ip saddr { 10.244.2.2 }"},
		},
		{
			"peers that no Pod matches",
			[]string{to + "[{from: [{podSelector: {matchLabels: {app: none}}}]}]"},
			ingress,
			[]string{},
		},
		{"a block with exceptions", []string{
			to + "[{from: [{ipBlock: {cidr: 10.0.0.1/8, except: [10.1.0.0/16, 10.2.0.0/16]}}], ports: [{port: 80}]}]",
		}, ingress, []string{"ip saddr 10.0.0.0/8 ip saddr != 10.1.0.0/16 ip saddr != 10.2.0.0/16 tcp dport 80"}},
		{
			"a block of the other family",
			[]string{from + `[{to: [{ipBlock: {cidr: "fd00::/8"}}]}]`},
			egress,
			[]string{"ip6 daddr fd00::/8"},
		},
		{"policies add up", []string{
			"policyTypes: [Ingress]", to + "[{ports: [{port: 80}, {port: 81}]}]", to + "[{ports: [{port: 80}]}]",
		}, ingress, []string{"tcp dport 80", "tcp dport 81"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := testState(t, test.specs...)
			got, isolated, err := s.allowed(s.pods[0], test.direction)
			if err != nil || isolated != (test.want != nil) || !slices.Equal(got, test.want) {
				t.Errorf("allowed returns %q, %t, %v, want %q", got, isolated, err, test.want)
			}
			if other, isolated, _ := s.allowed(s.pods[2], test.direction); isolated || len(other) > 0 {
				t.Errorf("a Pod of another namespace is restricted: %q", other)
			}
		})
	}
}

func TestInvalidPolicyIsAnError(t *testing.T) {
	for _, spec := range []string{
		"{podSelector: {matchLabels: {'not/a/key': x}}, policyTypes: [Ingress]}",
		"{policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: nowhere}}]}]}",
		"{policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [nowhere]}}]}]}",
		"{policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {'not/a/key': x}}}]}]}",
	} {
		if rules, err := testState(t, spec).ruleset("node-1"); err == nil || !strings.Contains(err.Error(), "shop/policy") {
			t.Errorf("%s: %v, %v", spec, rules, err)
		}
	}
}

func TestRulesetHasThePodsOfItsNode(t *testing.T) {
	s := testState(t, "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}")
	rules, err := s.ruleset("node-1")
	if err != nil || !slices.Equal(rules.chains, []string{"ingress-shop/web"}) {
		t.Fatalf("the chains are %q, %v", rules.chains, err)
	}
	for _, want := range []string{
		"\tchain ingress-shop/web {\n\t\tip saddr { 10.244.1.2 } return\n\t\tip6 saddr { fd00::2 } return\n\t\tgoto denied\n",
		"\tchain from-pods {\n\t\tip saddr vmap { 10.244.1.2 : return, 10.244.1.3 : return }\n" +
			"\t\tip6 saddr vmap { fd00::2 : return, fd00::3 : return }\n\t\tdrop\n\t}\n",
		"\tchain to-pods {\n\t\tip daddr vmap { 10.244.1.2 : goto ingress-shop/web, 10.244.1.3 : return }\n",
	} {
		if !strings.Contains(rules.text, want) {
			t.Errorf("the rules lack\n%s\nin\n%s", want, rules.text)
		}
	}
	script := rules.script(ruleset{chains: []string{"egress-old/pod"}})
	flush := strings.Index(script, "flush table")
	del := strings.Index(script, "delete chain inet netpolicy egress-old/pod\n")
	if flush < 0 || del < flush || strings.Index(script, "chain forward") < del {
		t.Errorf("the script does not remove the old chains first:\n%s", script)
	}
	again, err := s.ruleset("node-1")
	if err != nil || again.text != rules.text {
		t.Errorf("the same state has other rules (%v):\n%s", err, again.text)
	}
}

// cacheEntry is what the CNI library of containerd writes, without the configuration in it.
const cacheEntry = `{"kind":"cniCacheV1","containerId":"2f","config":"e30=","ifName":"eth0","networkName":"pods",
"netns":"/var/run/netns/cni-1","cniArgs":[["K8S_POD_NAME","web"],["K8S_POD_INFRA_CONTAINER_ID","2f"],
["K8S_POD_UID","04fe3d34"],["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","shop"]],
"result":{"cniVersion":"1.0.0","ips":[{"address":"10.244.1.2/24","gateway":"10.244.1.1","interface":2},
{"address":"fd00::2/64"}]}}`

func TestRecordHasThePodAndItsAddresses(t *testing.T) {
	got, err := parseRecord("node-1", []byte(cacheEntry))
	want := record{node: "node-1", pod: "04fe3d34", addresses: []netip.Addr{
		netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00::2"),
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the record is %v, %v, want %v", got, err, want)
	}
	noPod, noAddress := strings.Replace(cacheEntry, "POD_UID", "OTHER", 1), `{"cniArgs": [["K8S_POD_UID", "1"]]}`
	for _, text := range []string{"{}", noPod, noAddress} {
		if got, err := parseRecord("node-1", []byte(text)); err == nil {
			t.Errorf("%s is %v", text, got)
		}
	}
}

func TestRecordsFollowTheirFiles(t *testing.T) {
	dir, r := t.TempDir(), records{}
	folders := map[string]string{"node-1": dir, "node-2": filepath.Join(dir, "absent")}
	step := func(wantChanged bool, wantPods int) {
		t.Helper()
		if changed, err := r.update(folders); err != nil || changed != wantChanged || len(r) != wantPods {
			t.Fatalf("update returns %t, %v, with %d records, want %t and %d", changed, err, len(r), wantChanged, wantPods)
		}
	}
	file := filepath.Join(dir, "pods-2f-eth0")
	for name, text := range map[string]string{
		"pods-2f-eth0": cacheEntry[:100], "cni-loopback-2f-lo": strings.Replace(cacheEntry, "eth0", "lo", 1),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	step(false, 0) // half of a file
	if err := os.WriteFile(file, []byte(cacheEntry), 0o600); err != nil {
		t.Fatal(err)
	}
	step(true, 1)
	step(false, 1)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	step(true, 0)
}

func TestFlowsAreReadFromNFT(t *testing.T) {
	const output = `{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"set": {"family": "inet", "name": "dropped4",
"size": 1000, "elem": [{"concat": ["10.1.1.1", "10.1.1.2", 17, 53]}, {"concat": ["fd00::1", "fd00::2", 6, 443]}]}}]}`
	flows, err := parseFlows([]byte(output))
	if err != nil || len(flows) != 2 || flows[0].String() != "10.1.1.1 to 10.1.1.2:53 UDP" ||
		flows[1].String() != "fd00::1 to [fd00::2]:443 TCP" {
		t.Errorf("the flows are %v, %v", flows, err)
	}
	if flows, err := parseFlows([]byte(strings.Replace(output, "17, 53", "17", 1))); err == nil {
		t.Errorf("an incomplete flow is %v", flows)
	}
}
