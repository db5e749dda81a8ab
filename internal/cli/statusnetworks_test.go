package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
	"github.com/fairlead/fairlead/pkg/model"
)

// withNetworks creates a Cluster without a tunnel of its own and with two networks, of which site1 has an edge, and an
// Envoy beside an apiserver. It returns the namespace and the nodes.
func withNetworks(t *testing.T, p *person) (namespace, edge, egress string) {
	t.Helper()
	namespace, edge, egress = kubetest.NewNamespace(t, p), model.NewNodeName(), model.NewNodeName()
	cluster := kubetest.Cluster(namespace, "shop")
	cluster.Labels = nil
	create := []client.Object{cluster}
	for name, cidr := range map[string]string{"site1": "10.21.0.0/16", "site2": "10.22.0.0/16"} {
		create = append(create, &v1alpha1.RemoteNetwork{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       v1alpha1.RemoteNetworkSpec{ClusterName: "shop", CIDRs: []string{cidr}},
		})
	}
	for _, o := range create {
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	connected := edgeStatus(egress)
	connected.Connected = true
	for tunnel, record := range map[string]v1alpha1.EdgeStatus{
		"site1.network": edgeStatus(edge, v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}),
		"shop.egress":   connected,
	} {
		key := client.ObjectKey{Namespace: namespace, Name: tunnel}
		kubetest.Eventually(t, "there is a Tunnel", func() error {
			one := &v1alpha1.Tunnel{}
			if err := p.Get(t.Context(), key, one); err != nil {
				return err
			}
			if !meta.IsStatusConditionTrue(one.Status.Conditions, v1alpha1.ConditionAccepted) {
				return errors.New("it is not accepted")
			}
			return nil
		})
		setStatus(t, p, key, func(s *v1alpha1.TunnelStatus) {
			s.Edges = []v1alpha1.EdgeStatus{record}
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{
				Type: v1alpha1.ConditionTunnelReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonConnected,
			})
		})
	}
	return namespace, edge, egress
}

// TestStatusShowsNetworksBelowTheirCluster, of a Cluster that has no tunnel of its own.
func TestStatusShowsNetworksBelowTheirCluster(t *testing.T) {
	p := newPerson(t)
	namespace, edge, egress := withNetworks(t, p)
	var view summary.View
	eventually.True(t, 30*time.Second, "site1 and the apiservers are connected", func() error {
		out, err := p.does(t, "status", "-n", namespace, "-o", "json", "--live=false")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(out), &view); err != nil || len(view.Rows) != 1 || len(view.Rows[0].Networks) != 2 ||
			view.Rows[0].Egress == nil || view.Rows[0].Networks[0].Health != summary.OK ||
			view.Rows[0].Egress.Health != summary.OK || view.Rows[0].Networks[1].Health != summary.Waiting {
			return errors.New(out)
		}
		return nil
	})
	if s := view.Summary; s.Networks != 2 || s.NetworksOK != 1 || s.Edges != 1 || s.EdgesConnected != 1 || s.Tunnels != 2 {
		t.Errorf("summary %+v", s)
	}
	table := lines(p.must(t, []string{"1 of 2 networks ok"}, "status", "-n", namespace, "--live=false"))
	for i, want := range []string{
		"shop waiting - - 0/0", "site1 ok network 10.21.0.0/16 1/1 gateway-0:2",
		"site2 waiting network 10.22.0.0/16 0/0", "apiservers ok egress - 1/1",
	} {
		if got := table[len(table)-4+i]; !strings.HasPrefix(got, namespace+" "+want) {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	p.must(t, []string{
		"Networks", "Edges of network site1", edge, "Apiservers, egress", egress, "10.22.0.0/16",
		"network site2: ",
	}, "status", "-n", namespace, "shop", "--live=false")
	p.mustNot(t, "is the Tunnel of the RemoteNetwork site1", "status", "-n", namespace, "site1.network")
	p.mustNot(t, "fairlead status -n "+namespace+" shop", "status", "-n", namespace, "shop.egress")
	edges := lines(p.must(t, nil, "edge", "list", "-n", namespace, "shop"))
	if len(edges) != 3 ||
		!strings.HasPrefix(edges[1], namespace+" shop - egress "+egress+" host-of-"+egress+" connected -") ||
		!strings.HasPrefix(edges[2], namespace+" shop site1 edge "+edge+" host-of-"+edge+" connected gateway-0:2") {
		t.Errorf("edge list prints %q", edges)
	}
}

// TestTheOperatorOfANetworkSeesNoOther: status shows neither Clusters nor networks without permission, and the operator
// reads the own network and its edges.
func TestTheOperatorOfANetworkSeesNoOther(t *testing.T) {
	admin := newPerson(t)
	namespace, edge, _ := withNetworks(t, admin)
	operator, role := operatorOf(t, admin, namespace)
	operator.must(t, []string{"10.21.0.0/16"}, "network", "list", "-n", namespace, "site1", "-o", "wide")
	operator.must(t, []string{edge}, "edge", "list", "-n", namespace, "site1.network")
	for _, args := range [][]string{
		{"network", "list", "-n", namespace, "site2"},
		{"network", "list", "-n", namespace},
		{"network", "list", "-A"},
		{"edge", "list", "-n", namespace, "shop.egress"},
		{"edge", "list", "-n", namespace},
		{"status", "-n", namespace},
	} {
		operator.mustNot(t, "forbidden", args...)
	}
	// A person without a permission for networks sees everything else.
	role.Rules = []rbacv1.PolicyRule{{
		APIGroups: []string{"cluster.x-k8s.io", v1alpha1.GroupVersion.Group}, Resources: []string{"clusters", "tunnels"},
		Verbs: []string{"get", "list"},
	}}
	if err := admin.Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, 10*time.Second, "status hides networks and says so", func() error {
		out, err := operator.does(t, "status", "-n", namespace, "--live=false")
		if err == nil && (strings.Contains(out, "10.21.0.0/16") || !strings.Contains(out, "no networks: you may not list")) {
			err = errors.New(out)
		}
		return err
	})
}

// operatorOf returns a person with the permissions of deploy/site-operator for the network site1 of a namespace.
func operatorOf(t *testing.T, admin *person, namespace string) (*person, *rbacv1.Role) {
	t.Helper()
	operator := &person{admin.Client, filepath.Join(t.TempDir(), "kubeconfig")}
	config, err := clientcmd.LoadFromFile(admin.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["admin"].Impersonate = "operator-of-" + namespace
	if err := clientcmd.WriteToFile(*config, operator.kubeconfig); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{}
	data, err := os.ReadFile("../../deploy/site-operator/role.yaml")
	if err := errors.Join(err, yaml.UnmarshalStrict(data, role)); err != nil {
		t.Fatal(err)
	}
	role.Namespace = namespace
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "operator-of-" + namespace}},
	}
	for _, o := range []client.Object{role, binding} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	eventually.True(t, 10*time.Second, "the operator reads the network", func() error {
		_, err := operator.does(t, "network", "list", "-n", namespace, "site1")
		return err
	})
	return operator, role
}

// TestTheOperatorOfANetworkRevokesItsEdges: without permissions on the Tunnel of a Cluster, and in the namespace of the
// installation.
func TestTheOperatorOfANetworkRevokesItsEdges(t *testing.T) {
	admin := newPerson(t)
	namespace, edge, egress := withNetworks(t, admin)
	operator, _ := operatorOf(t, admin, namespace)
	args := func(node, network string, more ...string) []string {
		return append([]string{"edge", "revoke", node, "-n", namespace, "--network=" + network}, more...)
	}
	operator.mustNot(t, "forbidden", args(edge, "site2")...)
	operator.mustNot(t, "forbidden", "edge", "revoke", egress, "-n", namespace, "--cluster=shop.egress")
	operator.mustNot(t, "forbidden", "edge", "revoke", edge, "-n", namespace)
	operator.mustNot(t, "--network needs --namespace", "edge", "revoke", edge, "--network=site1")
	operator.mustNot(t, "have not confirmed", args(edge, "site1", "--timeout=3s")...)
	key := client.ObjectKey{Namespace: namespace, Name: "site1.network"}
	setStatus(t, admin, key, func(s *v1alpha1.TunnelStatus) {
		at := metav1.Now()
		s.Edges[0].Gateways, s.Edges[0].CutAt = nil, &at
	})
	operator.must(
		t, []string{"no gateway has a tunnel of it after ", "which takes permissions in namespace fairlead-system"},
		args(edge, "site1")...)
	// What is not on record is not known.
	operator.mustNot(t, notProven, args(model.NewNodeName(), "site1", "--timeout=3s")...)
	tunnel := &v1alpha1.Tunnel{}
	if err := admin.Get(t.Context(), key, tunnel); err != nil || !slices.Contains(tunnel.Spec.RevokedEdges, edge) {
		t.Errorf("revoked are %v, %v", tunnel.Spec.RevokedEdges, err)
	}
}
