package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
	"github.com/fairlead/fairlead/pkg/model"
)

// lines returns the lines of an output, with single spaces.
func lines(out string) (all []string) {
	for l := range strings.Lines(out) {
		all = append(all, strings.Join(strings.Fields(l), " "))
	}
	return all
}

func TestStatus(t *testing.T) {
	p := newPerson(t)
	node := model.NewNodeName()
	up := v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}
	key := serve(t, p, edgeStatus(node, up, v1alpha1.EdgeGatewayStatus{Name: "gateway-1", Tunnels: 3}))
	waitCondition(t, p, key, v1alpha1.ConditionEnrolled, v1alpha1.ReasonEnrolled)
	waitCondition(t, p, key, v1alpha1.ConditionAPIServerReachable, v1alpha1.ReasonUnknown)
	out, err := p.does(t, "status", "-n", key.Namespace, "--live=false")
	all := lines(out)
	if err != nil || len(all) != 4 || all[1] != "" || !strings.HasPrefix(all[0], "1 Cluster: ") ||
		!strings.HasSuffix(all[0], "1 of 1 edges connected, 5 tunnels") {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := key.Namespace + " c1 unknown "; !strings.HasPrefix(all[3], want) ||
		!strings.Contains(all[3], " c1."+key.Namespace+".tunnels.example.com 1/1 gateway-0:2,gateway-1:3 - ") {
		t.Errorf("got %q, want %q", all[3], want)
	}
	// Without xds-servers the command reports that, and shows everything else.
	p.must(t, []string{"no round-trip times: ", "gateway-1:3"}, "status", "-n", key.Namespace, "--xds-server=127.0.0.1:1")
	p.must(t, []string{"no round-trip times: ", "gateway-1:3"}, "status", "-n", key.Namespace)
	p.must(
		t,
		[]string{
			"State: ",
			node,
			"Warnings",
			"Certificates",
			"edge " + node,
			"TunnelReady",
			"fairlead check -n " + key.Namespace + " c1",
		},
		"status",
		"-n",
		key.Namespace,
		"c1",
		"--live=false",
	)

	var view summary.View
	if err := json.Unmarshal([]byte(p.must(t, nil, "status", "-n", key.Namespace, "-o", "json", "--live=false")),
		&view); err != nil ||
		len(view.Rows) != 1 ||
		view.Rows[0].Tunnels != 5 {
		t.Errorf("%v: %+v", err, view)
	}
	var row summary.Row
	if err := yaml.UnmarshalStrict([]byte(p.must(t, nil, "status", "-n", key.Namespace, "c1", "-o", "yaml",
		"--live=false")), &row); err != nil ||
		row.Edges[0].Node != node {
		t.Errorf("%v: %+v", err, row)
	}

	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace,
			Name:      "c1-kubeconfig",
			Labels:    map[string]string{clusterv1.ClusterNameLabel: "c1"},
		},
		Data: map[string][]byte{"value": []byte("garbage")},
	}
	if err := p.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	setStatus(t, p, key, func(s *v1alpha1.TunnelStatus) { s.Edges[0].LastError = "steers\x1b[31m" })
	waitCondition(t, p, key, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonInvalidKubeconfig)
	var stdout, stderr strings.Builder
	args := []string{"status", "-n", key.Namespace, "--live=false", "--kubeconfig=" + p.kubeconfig, "--context=good"}
	if code := run(t.Context(), args, &stdout, &stderr); code != 1 || !strings.Contains(stdout.String(), "and 2 more") ||
		stderr.Len() > 0 ||
		!strings.Contains(stdout.String(), "1 broken") ||
		strings.Contains(stdout.String(), "\x1b") {
		t.Errorf("of a broken Cluster: exit code %d, %q, printed\n%s", code, stderr.String(), stdout.String())
	}
}

func TestStatusRejects(t *testing.T) {
	p := newPerson(t)
	namespace := kubetest.NewNamespace(t, p)
	p.mustNot(t, "Cluster c9 not found in namespace "+namespace, "status", "-n", namespace, "c9")
	p.mustNot(t, "give --namespace instead", "status", "-A", "c9")
	p.mustNot(t, "must be one of table, wide, json, yaml", "status", "-A", "-o", "xml")
	plain := kubetest.Cluster(namespace, "plain")
	plain.Labels = nil
	if err := p.Create(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	p.mustNot(t, "asks for none: label it with fairlead.dev/tunnel=enabled", "status", "-n", namespace, "plain")
	p.must(
		t, []string{"1 more Clusters have not opted in", "no Cluster in this namespace has a tunnel"}, "status", "-n",
		namespace, "--live=false",
	)
}

// TestStatusWatch checks that exactly the rows that change are appended while the command runs.
func TestStatusWatch(t *testing.T) {
	p := newPerson(t)
	up := v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}
	key := serve(t, p, edgeStatus("a", up))
	// A Tunnel without a Cluster never changes.
	still := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: kubetest.NewNamespace(t, p), Name: "still"}}
	if err := p.Create(t.Context(), still); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var out, errs logtest.Journal
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{
			"status", "-A", "--watch", "--live=false", "--kubeconfig=" + p.kubeconfig,
			"--context=good",
		}, &out, &errs)
	}()
	shown := func(text string) func() error {
		return func() error {
			if !strings.Contains(out.String(), text) {
				return errNot(out.String() + errs.String())
			}
			return nil
		}
	}
	kubetest.Eventually(t, "it is shown", shown(key.Namespace))
	kubetest.Eventually(t, "all are shown", shown("Cluster still not found"))
	begin := time.Now()
	setStatus(t, p, key, func(s *v1alpha1.TunnelStatus) { s.Edges[0].Gateways[0].Tunnels = 7 })
	kubetest.Eventually(t, "the change is shown", shown("gateway-0:7"))
	t.Logf("change_shown=%s", time.Since(begin).Round(time.Millisecond))
	if strings.Count(out.String(), still.Namespace+" ") != 1 || strings.Count(out.String(), "NAMESPACE") != 1 {
		t.Errorf("what did not change is shown again:\n%s", out.String())
	}
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: kubetest.NewNamespace(t, p), Name: "late"}}
	if err := p.Create(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, "a new one is shown", shown("Cluster late not found"))
	if err := p.Delete(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, "its end is shown", shown(tunnel.Namespace+"/late is gone"))
	stop()
	if code := <-ended; code != 0 || errs.String() != "" {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
}

// waitCondition waits until a Tunnel has a condition with a reason.
func waitCondition(t *testing.T, p *person, key client.ObjectKey, kind, reason string) {
	t.Helper()
	kubetest.Eventually(t, kind+" is "+reason, func() error {
		tunnel := &v1alpha1.Tunnel{}
		if err := p.Get(t.Context(), key, tunnel); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(tunnel.Status.Conditions, kind); c == nil || c.Reason != reason {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

// TestStatusReportsThePublicAddress: a user who has just installed Fairlead sees which DNS record is missing.
func TestStatusReportsThePublicAddress(t *testing.T) {
	p := newPerson(t)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: kubetest.NewNamespace(t, p.Client), Name: v1alpha1.PublicServiceName},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}
	if err := p.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	const missing = "gateway.tunnels.example.com does not resolve: create its DNS record with the target 203.0.113.7"
	for _, c := range []metav1.Condition{
		{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPublicAddressPending, Message: missing},
		{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPublicAddressResolves, Message: "it resolves"},
	} {
		c.Type = v1alpha1.ServiceConditionPublicAddress
		meta.SetStatusCondition(&service.Status.Conditions, c)
		if err := p.Status().Update(t.Context(), service); err != nil {
			t.Fatal(err)
		}
		out, err := p.does(t, "status", "-n", service.Namespace, "--installation="+service.Namespace, "--live=false")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if want := c.Status == metav1.ConditionFalse; strings.Contains(out, "PublicAddressPending: "+missing) != want {
			t.Errorf("with the reason %s status shows %q", c.Reason, out)
		}
	}
}
