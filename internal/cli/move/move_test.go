package move

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	manifests "github.com/fairlead/fairlead/deploy/edge"
	"github.com/fairlead/fairlead/pkg/observed"
)

func TestUnmatchedEdges(t *testing.T) {
	for name, tc := range map[string]struct {
		here, there []string
		want        int
	}{
		"all are there":                           {here: []string{"a", "b"}, there: []string{"b", "a"}},
		"none is":                                 {here: []string{"a", "b"}, want: 2},
		"another one is":                          {here: []string{"a"}, there: []string{"c"}, want: 1},
		"one of two on a host":                    {here: []string{"a", "a"}, there: []string{"a"}, want: 1},
		"one whose host does not resolve":         {here: []string{"a", "b"}, there: []string{"", "b"}},
		"a local one whose host does not resolve": {here: []string{"", "b"}, there: []string{"a", "b"}},
		"a host and one that has none":            {here: []string{"", "a"}, there: []string{"a"}, want: 1},
	} {
		var here, there []observed.Edge
		for _, h := range tc.here {
			here = append(here, observed.Edge{Host: h})
		}
		for _, h := range tc.there {
			there = append(there, observed.Edge{Host: h})
		}
		if got := unmatched(here, there); len(got) != tc.want {
			t.Errorf("%s: %d, want %d", name, len(got), tc.want)
		}
	}
}

func TestKubeconfigsOfSecretsAreOnlyData(t *testing.T) {
	for field, change := range map[string]func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo){
		"": func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {},
		"exec": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.Exec = &clientcmdapi.ExecConfig{Command: "true"}
		},
		"auth-provider": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "oidc"}
		},
		"tokenFile": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.TokenFile = "/etc/hostname" },
		"client-certificate": func(_ *clientcmdapi.Cluster,
			u *clientcmdapi.AuthInfo,
		) {
			u.ClientCertificate = "/etc/hostname"
		},
		"client-key": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.ClientKey = "/etc/hostname" },
		"certificate-authority": func(c *clientcmdapi.Cluster,
			_ *clientcmdapi.AuthInfo,
		) {
			c.CertificateAuthority = "/etc/hostname"
		},
	} {
		cluster, user := &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}, &clientcmdapi.AuthInfo{Token: "t0ken"}
		change(cluster, user)
		file := clientcmdapi.NewConfig()
		file.Clusters["c"], file.AuthInfos["u"], file.Contexts["x"] = cluster, user, &clientcmdapi.Context{
			Cluster:  "c",
			AuthInfo: "u",
		}
		file.CurrentContext = "x"
		data, err := clientcmd.Write(*file)
		if err != nil {
			t.Fatal(err)
		}
		switch _, err := inlineConfig(data); {
		case field == "" && err != nil:
			t.Errorf("data alone: %v", err)
		case field != "" && (err == nil || !strings.Contains(err.Error(), " has "+field)):
			t.Errorf("%s: got %v", field, err)
		case err != nil && (strings.Contains(err.Error(), "t0ken") || strings.Contains(err.Error(), "hostname")):
			t.Errorf("%s: it quotes what is in it: %v", field, err)
		}
	}
	if _, err := inlineConfig([]byte("\tno YAML")); err == nil || !strings.Contains(err.Error(), "not a kubeconfig") {
		t.Errorf("garbage: %v", err)
	}
}

// podOf returns a Pod of a DaemonSet that fairlead network join prints.
func podOf(t *testing.T, network, node string) corev1.Pod {
	t.Helper()
	var set appsv1.DaemonSet
	manifest := manifests.DaemonSetOf(manifests.DaemonSet, network, nil)
	if err := yaml.UnmarshalStrict([]byte(manifest), &set); err != nil {
		t.Fatal(err)
	}
	pod := corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Namespace, pod.Name, pod.Spec.NodeName = set.Namespace, network+"-"+node, node
	pod.Status.Phase = corev1.PodRunning
	return pod
}

// podsOnly returns a client of an apiserver that has only these Pods.
func podsOnly(t *testing.T, pods ...corev1.Pod) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		for i := range pods {
			in := "/api/v1/namespaces/" + pods[i].Namespace + "/pods"
			if r.URL.Path == in && selector.Matches(labels.Set(pods[i].Labels)) {
				list.Items = append(list.Items, pods[i])
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(server.Close)
	set, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestPodsOfTheDaemonSetOfANetwork(t *testing.T) {
	set := podsOnly(
		t, podOf(t, "oslo", "a"), podOf(t, "bergen", "a"), podOf(t, "oslo", "b"), podOf(t, "cluster", "a"),
	)
	flag := movePrepareCommand().Flags().Lookup("edge-namespace")
	for tunnel, want := range map[string][]string{
		"oslo.network": {"oslo-a", "oslo-b"}, "bergen.network": {"bergen-a"}, "shop": nil, "shop.egress": nil,
		"oslo": nil, "cluster.network": nil, // the last one is the name of the Cluster
	} {
		m := &move{
			cluster: client.ObjectKey{Namespace: "prod", Name: "cluster.network"},
			key:     client.ObjectKey{Namespace: "prod", Name: tunnel},
		}
		m.flags.edges = strings.Split(strings.Trim(flag.DefValue, "[]"), ",")
		pods, err := m.daemonSetPods(t.Context(), set)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range pods {
			got = append(got, p.Name)
			if dir := stateDirOf(agentContainer(&p)); dir != "/var/lib/fairlead/network" {
				t.Errorf("%s has its state in %s", p.Name, dir)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tunnel, got, want)
		}
	}
}

func TestAStaticPodBesideADaemonSet(t *testing.T) {
	static := func(node string) corev1.Pod {
		p := corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true, NodeName: node}}
		p.Name, p.Status.Phase = "static-"+node, corev1.PodRunning
		return p
	}
	on := func(hosts ...string) (edges []observed.Edge) {
		for _, h := range hosts {
			edges = append(edges, observed.Edge{Host: h})
		}
		return edges
	}
	set, starting, ending := podOf(t, "oslo", "a"), podOf(t, "oslo", "a"), podOf(t, "oslo", "a")
	starting.Status.Phase = corev1.PodPending
	now := metav1.Now()
	ending.DeletionTimestamp = &now
	for name, tc := range map[string]struct {
		own, others        []corev1.Pod
		connected, missing []observed.Edge
		want               []string
	}{
		"a static Pod of the Cluster": {
			[]corev1.Pod{set}, []corev1.Pod{static("a")}, on("a"), on("a"), []string{"oslo-a"},
		},
		"while the DaemonSet's Pod starts": {[]corev1.Pod{starting}, []corev1.Pod{static("a")}, on("a"), on("a"), nil},
		"while it ends":                    {[]corev1.Pod{ending}, []corev1.Pod{static("a")}, on("a"), on("a"), nil},
		"a static Pod of the network too": {
			[]corev1.Pod{set}, []corev1.Pod{static("a")}, on("a", "a"), on("a"), []string{"oslo-a", "static-a"},
		},
		"a static Pod on another machine": {
			[]corev1.Pod{set}, []corev1.Pod{static("b")}, on("a", "b"), on("a", "b"), []string{"oslo-a", "static-b"},
		},
		"nothing is missing":     {[]corev1.Pod{set}, []corev1.Pod{static("a")}, on("a"), nil, nil},
		"two Pods, and one edge": {[]corev1.Pod{set, set}, nil, on("a"), on("a"), nil},
	} {
		var out strings.Builder
		var got []string
		for _, p := range (&move{out: &out}).choose(tc.own, tc.others, tc.connected, tc.missing) {
			got = append(got, p.Name)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v\n%s", name, got, tc.want, out.String())
		}
	}
}
