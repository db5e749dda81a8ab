package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// shows runs a command that exits with the code want, and returns its output.
func (p *person) shows(t *testing.T, want int, args ...string) (out, errs string) {
	t.Helper()
	var stdout, stderr strings.Builder
	if code := run(t.Context(), append(args, "--kubeconfig="+p.kubeconfig, "--context=good"), &stdout,
		&stderr); code != want {
		t.Errorf("%v: exit code %d, want %d\n%s%s", args, code, want, stdout.String(), stderr.String())
	}
	return stdout.String(), stderr.String()
}

// deployViewer creates the roles of viewer.yaml, unless another test has created them.
func deployViewer(t *testing.T, p *person) {
	t.Helper()
	if err := kubetest.Deploy(t.Context(), p, "viewer.yaml"); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// viewer returns a user with the roles of viewer.yaml and no other permissions.
func viewer(t *testing.T, p *person) *person {
	t.Helper()
	deployViewer(t, p)
	user := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viewer"}}
	for _, binding := range []client.Object{
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: collect.DefaultNamespace, Name: "viewer"}, Subjects: user,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "fairlead-viewer"},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, Subjects: user,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "fairlead-viewer"},
		},
	} {
		if err := p.Create(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
	}
	config, err := clientcmd.LoadFromFile(p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["admin"].Impersonate = "viewer"
	other := &person{p.Client, t.TempDir() + "/kubeconfig"}
	if err := clientcmd.WriteToFile(*config, other.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return other
}

// tunnelOf waits until a Cluster has a Tunnel, and returns the model that an xds-server makes of it.
func tunnelOf(t *testing.T, p *person, namespace, name string) model.WorkloadCluster {
	t.Helper()
	key := model.Key{Namespace: namespace, Name: name}
	var tunnel v1alpha1.Tunnel
	kubetest.Eventually(t, "the Tunnel has an id", func() error {
		if err := p.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &tunnel); err != nil ||
			tunnel.Status.ID == "" {
			return fmt.Errorf("%w, id %q", err, tunnel.Status.ID)
		}
		return nil
	})
	hostname, err := configDomain.Hostname(key)
	if err != nil {
		t.Fatal(err)
	}
	return model.WorkloadCluster{
		Key:       key,
		ID:        tunnel.Spec.ID,
		Hostname:  hostname,
		APIServer: model.Endpoint{Host: "192.0.2.10", Port: 6443},
	}
}

// The test connects through a real kube-apiserver and the streaming code of a real kubelet.
func TestConfigThroughForwardedPorts(t *testing.T) {
	p := newPerson(t)
	cluster := newCluster(t, p)
	wc := tunnelOf(t, p, cluster.Namespace, "c1")
	node := startKubelet(t, p)
	one, two := newXDSServer(t, wc), newXDSServer(t, wc)
	one.gateway(t, "gateway-0", "", &reportv1.Tunnel{Key: "a", Node: "edge-1", TunnelId: wc.ID})
	one.pod(t, p, node, "xds-server-a", corev1.ConditionTrue)
	two.pod(t, p, node, "xds-server-b", corev1.ConditionTrue)
	two.pod(t, p, node, "xds-server-c", corev1.ConditionFalse)
	someone := viewer(t, p)

	out, errs := someone.shows(t, 1, "config", "sync")
	for _, want := range []string{
		"gateway-0 gateway - cds SYNCED ", "gateway-1 gateway - - DISCONNECTED - - - its agent is not connected",
	} {
		if !strings.Contains(strings.Join(lines(out), "\n"), want) {
			t.Errorf("%q is not in\n%s%s", want, out, errs)
		}
	}
	if out, _ := someone.shows(t, 0, "config", "sync", "gateway-0", "-o", "wide"); !strings.Contains(
		out, "xds-server-a",
	) ||
		strings.Contains(out, "gateway-1") {
		t.Errorf("got\n%s", out)
	}
	if out, _ := someone.shows(t, 1, "config", "why", wc.Hostname); !strings.Contains(
		strings.Join(lines(out), "\n"), "gateway-1 DISCONNECTED",
	) {
		t.Errorf("got\n%s", out)
	}
	two.gateway(t, "gateway-1", wc.Hostname, &reportv1.Tunnel{Key: "a", Node: "edge-1", TunnelId: wc.ID})
	kubetest.Eventually(t, "rejected resources are shown", func() error {
		out, _ := someone.shows(t, 1, "config", "sync", "-o", "json")
		var got struct {
			Nodes []struct {
				Node, Status, Message string
				Since                 *time.Time
			}
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			return err
		}
		if r := got.Nodes[0]; r.Node != "gateway-1" || r.Status != "NACK" || r.Since == nil ||
			!strings.Contains(r.Message, "Error adding/updating cluster(s) "+wc.Hostname) {
			return fmt.Errorf("the first is %+v", r)
		}
		return nil
	})

	out, _ = someone.shows(t, 0, "config", "dump", "gateway-0", "--name", wc.Hostname)
	if !strings.Contains(out, "name: "+wc.Hostname) || !strings.Contains(out, wc.ID+".id.tunnels.example.com") {
		t.Errorf("got\n%s", out)
	}
	if _, errs := someone.shows(t, 1, "config", "dump", "gateway-7"); !strings.Contains(errs, "fairlead config sync") {
		t.Errorf("got %s", errs)
	}
	if _, errs := someone.shows(t, 2, "config", "dump", "gateway-0", "--type=eds"); !strings.Contains(errs, "--type") {
		t.Errorf("got %s", errs)
	}
	whyThroughForwardedPorts(t, p, someone, wc)
	rolloutThroughForwardedPorts(t, p, someone)

	// A user without a role is told which role is missing.
	denied := *someone
	denied.kubeconfig = impersonating(t, p, "nobody")
	if _, errs := denied.shows(t, 1, "config", "sync"); !strings.Contains(errs, "forbidden") ||
		!strings.Contains(errs, "fairlead-viewer") {
		t.Errorf("got %s", errs)
	}
	if _, errs := p.shows(t, 1, "config", "sync", "--installation="+cluster.Namespace); !strings.Contains(
		errs, "--installation",
	) {
		t.Errorf("got %s", errs)
	}
}

// rolloutThroughForwardedPorts: gateway-0 has accepted what it is served, gateway-1 refuses some of it.
func rolloutThroughForwardedPorts(t *testing.T, p, someone *person) {
	t.Helper()
	type got struct {
		Nodes   []struct{ Node, Profile string }
		Rollout *struct {
			Phase, Current, Next, Reason string
			AtNext, Nodes                int
			First                        []string
		}
	}
	look := func(code int, arguments ...string) (all got) {
		t.Helper()
		out, errs := someone.shows(t, code, append([]string{"config", "sync", "-o", "json"}, arguments...)...)
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatalf("%v: %s%s", err, out, errs)
		}
		return all
	}
	before := look(0, "gateway-0")
	if before.Rollout != nil || len(before.Nodes[0].Profile) != 8 {
		t.Fatalf("without a record it is %+v", before)
	}
	at := model.Endpoint{Host: "10.0.0.9", Port: 443}
	served := rollout.SettingsOf(model.Installation{Public: at, Control: model.Endpoint{Host: at.Host, Port: 18000}},
		envoy.Current.String()).
		Profile()
	if served.ID() != before.Nodes[0].Profile {
		t.Fatalf("gateway-0 is served %s, want %s", before.Nodes[0].Profile, served.ID())
	}
	other := rollout.Settings{Version: "0.1"}.Profile()
	record := rollout.Record{
		Current: other,
		Next:    served,
		Phase:   rollout.PhaseFirst,
		Since:   time.Now().Add(-5 * time.Minute),
		Nodes: []rollout.Member{
			{Node: rollout.Node{Name: "gateway-0"}},
		},
	}
	text, err := record.Text()
	if err != nil {
		t.Fatal(err)
	}
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: collect.DefaultNamespace,
			Name:      v1alpha1.RolloutConfigMapName,
		}, Data: map[string]string{rollout.RecordKey: text},
	}
	if err := p.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Delete(context.Background(), object) })
	r := look(0, "gateway-0").Rollout
	if r == nil || r.Phase != "first" || r.Next != served.ID() || r.Current != other.ID() || r.AtNext != 1 ||
		r.Nodes != 2 ||
		!slices.Equal(r.First, []string{"gateway-0"}) {
		t.Errorf("it is %+v", r)
	}
	if out, _ := someone.shows(t, 0, "config", "sync", "gateway-0"); !strings.Contains(
		out, "rollout of profile "+served.ID()+": first wave for 5m",
	) {
		t.Errorf("got\n%s", out)
	}
	record.Phase, record.Nodes, record.Reason = rollout.PhaseStopped, nil, "gateway gateway-0: takes no clients"
	if text, err = record.Text(); err != nil {
		t.Fatal(err)
	}
	object.Data[rollout.RecordKey] = text
	if err := p.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if r := look(1, "gateway-0").Rollout; r.Phase != "stopped" || r.Reason != record.Reason {
		t.Errorf("it is %+v", r)
	}
	if out, _ := someone.shows(t, 1, "config", "sync", "gateway-0"); !strings.Contains(out, "stopped") ||
		!strings.Contains(out, record.Reason) {
		t.Errorf("got\n%s", out)
	}
}

func impersonating(t *testing.T, p *person, user string) (path string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["admin"].Impersonate = user
	path = t.TempDir() + "/kubeconfig"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func whyThroughForwardedPorts(t *testing.T, p, someone *person, wc model.WorkloadCluster) {
	t.Helper()
	out, _ := someone.shows(t, 1, "config", "why", "https://"+wc.Hostname+":6443/")
	for _, want := range []string{
		"not every gateway serves it: gateway-1 (NACK)", "name " + wc.Hostname + " Cluster metadata.name",
		wc.ID + ".id.tunnels.example.com Tunnel spec.id", "gateway-0 SYNCED", "gateway-1 NACK", "apiserver 192.0.2.10:6443 " +
			"Tunnel spec.apiServer.address",
	} {
		if !strings.Contains(strings.Join(lines(out), "\n"), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	for hostname, want := range map[string]string{
		"c9." + wc.Key.Namespace + ".tunnels.example.com": "no Cluster has this tunnel hostname",
		"api.example.org": "no Tunnel has it as an extra name",
	} {
		if out, _ := someone.shows(t, 1, "config", "why", hostname); !strings.Contains(out, want) {
			t.Errorf("%s: got\n%s", hostname, out)
		}
	}
	// The older one of the two Clusters has an extra name.
	other := newCluster(t, p)
	tunnelOf(t, p, other.Namespace, "c1")
	for _, namespace := range []string{wc.Key.Namespace, other.Namespace} {
		kubetest.Eventually(t, "the Tunnel has an extra name", func() error {
			var tunnel v1alpha1.Tunnel
			if err := p.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "c1"}, &tunnel); err != nil {
				return err
			}
			tunnel.Spec.ExtraNames = []string{"api.example.net"}
			return p.Update(t.Context(), &tunnel)
		})
	}
	if out, _ := someone.shows(t, 1, "config", "why", "api.example.net", "-o", "json"); !strings.Contains(
		out,
		`"cluster": "`+wc.Key.String()+`"`,
	) ||
		!strings.Contains(out, `"from": "Tunnel spec.extraNames[0]"`) {
		t.Errorf("got\n%s", out)
	}
}
