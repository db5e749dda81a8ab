package kubernetes_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/source"
)

// TestTheGatewaysAreReplicasOfTheStatefulSet reads the StatefulSet as the xds-server does, and checks everything else
// that depends on its name and its labels.
func TestTheGatewaysAreReplicasOfTheStatefulSet(t *testing.T) {
	admin := apiserver(t)
	set, peers, budget := &appsv1.StatefulSet{}, &corev1.Service{}, &policyv1.PodDisruptionBudget{}
	for name, object := range map[string]client.Object{"gateway": set, "gateway-peers": peers} {
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(set), budget); err != nil {
		t.Fatal(err)
	}
	gateways, err := source.Gateways(set, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(gateways) != 2 || gateways[1].Peer.String() != "gateway-1."+peers.Name+"."+namespace+".svc:8443" {
		t.Errorf("the gateways are %+v", gateways)
	}
	// Peers connect to each other before they are ready: reverse tunnels use these connections.
	if !peers.Spec.PublishNotReadyAddresses || peers.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("the Service of the peers is %+v", peers.Spec)
	}
	for key, value := range set.Spec.Template.Labels {
		if budget.Spec.Selector.MatchLabels[key] != value || peers.Spec.Selector[key] != value {
			t.Errorf("label %s=%s of the Pods is not selected by all", key, value)
		}
	}
}

// TestAGatewayHasTheTimeThatItTakes compares the agent's drain timeout with the Pod's grace period, and checks the
// Service in --xds-servers.
func TestAGatewayHasTheTimeThatItTakes(t *testing.T) {
	admin := apiserver(t)
	set := &appsv1.StatefulSet{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "gateway"}, set); err != nil {
		t.Fatal(err)
	}
	flags := map[string]string{}
	for _, arg := range set.Spec.Template.Spec.Containers[0].Args {
		name, value, _ := strings.Cut(arg, "=")
		flags[name] = value
	}
	drain, err := time.ParseDuration(flags["--drain-timeout"])
	if err != nil {
		t.Fatal(err)
	}
	const end = 10 * time.Second // Envoy and its agent, with reserve
	if grace := time.Duration(*set.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second; grace < drain+end {
		t.Errorf("a Pod is killed %s after it was told to end, and drains for %s", grace, drain)
	}
	service, _, _ := strings.Cut(flags["--xds-servers"], ".")
	replicas := &corev1.Service{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: service}, replicas); err != nil {
		t.Fatalf("--xds-servers=%s: %v", flags["--xds-servers"], err)
	}
	if replicas.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("the Service %s has one address for all xds-servers", service)
	}
}

// TestAGatewayHasTimeToLoadItsCache: its agent answers no probe before, and must not be killed for that.
func TestAGatewayHasTimeToLoadItsCache(t *testing.T) {
	admin, set := apiserver(t), &appsv1.StatefulSet{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "gateway"}, set); err != nil {
		t.Fatal(err)
	}
	gateway := set.Spec.Template.Spec.Containers[0]
	start, live := gateway.StartupProbe, gateway.LivenessProbe
	if start == nil || start.HTTPGet == nil || start.HTTPGet.Path != live.HTTPGet.Path ||
		start.HTTPGet.Port != live.HTTPGet.Port {
		t.Fatalf("the startup probe is %v, and the liveness probe %v", start, live)
	}
	if most := time.Duration(start.PeriodSeconds*start.FailureThreshold) * time.Second; most < 5*time.Minute {
		t.Errorf("it is killed after %s", most)
	}
}

// filesOfAGateway is how docs/fleet.md states their size.
var filesOfAGateway = regexp.MustCompile(`at most (\d+) KiB for each name of a workload cluster, and (\d+) MiB`)

// TestTheVolumeOfAGatewayHoldsItsFiles compares the volume with the documented size of the files, for as many names as
// docs/fleet-explained.md has at most.
func TestTheVolumeOfAGatewayHoldsItsFiles(t *testing.T) {
	const names = 100_000
	document, err := os.ReadFile(root + "/docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	sizes := filesOfAGateway.FindStringSubmatch(strings.Join(strings.Fields(string(document)), " "))
	if sizes == nil {
		t.Fatalf("docs/fleet.md does not state %s", filesOfAGateway)
	}
	each, errEach := strconv.ParseInt(sizes[1], 10, 64)
	all, errAll := strconv.ParseInt(sizes[2], 10, 64)
	if err := errors.Join(errEach, errAll); err != nil {
		t.Fatal(err)
	}
	need := names*each<<10 + all<<20
	admin, set := apiserver(t), &appsv1.StatefulSet{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "gateway"}, set); err != nil {
		t.Fatal(err)
	}
	for _, v := range set.Spec.Template.Spec.Volumes {
		if v.Name != "state" {
			continue
		}
		if size := v.EmptyDir.SizeLimit.Value(); size < need {
			t.Errorf("the volume has %d bytes, and the files of %d names %d", size, names, need)
		}
		return
	}
	t.Error("there is no volume for the state")
}

// TestProgramsListenOnBothFamilies checks the address of each listener in the manifests: kubelets, load balancers and
// other Pods use the family of the cluster. Only listeners for kubectl port-forward are on loopback.
func TestProgramsListenOnBothFamilies(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range listenFlag.FindAllStringSubmatch(string(data), -1) {
			found++
			host, _, err := net.SplitHostPort(flag[2])
			if err != nil {
				t.Errorf("%s: %s: %v", file, flag[0], err)
			}
			if host != "" && (host != "127.0.0.1" || flag[1] != "inspect-listen") {
				t.Errorf("%s: %s does not listen on all addresses of both families", file, flag[0])
			}
		}
	}
	if found < 8 {
		t.Errorf("there are only %d listeners", found)
	}
}

var listenFlag = regexp.MustCompile(`--([a-z-]*listen)=(\S+)`)
