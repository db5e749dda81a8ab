package identity

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// podAccount is the ServiceAccount of the edges' Pods, in the namespace default.
const podAccount = "fairlead-edge"

// pods proves that edges in Pods recover without help when no edge and no valid bootstrap token is left. The workload
// cluster is a real kube-apiserver, which issues the tokens that a kubelet would write into the Pods.
func (d *doors) pods(t *testing.T) {
	cluster, err := d.CreateCluster(t.Context(), lab.ClusterSpec{
		Name: "pods", Namespace: namespace, APIServer: d.SNI, Mode: v1alpha1.KubeconfigModeConnect,
	})
	must(t, err)
	spec := map[string]any{"edgeServiceAccount": map[string]any{"namespace": "default", "name": podAccount}}
	must(t, cluster.PatchTunnel(t.Context(), spec))
	m := &world.Member{Cluster: cluster, World: d.World}
	first, written := m.BootstrapFile(t), time.Now()
	that(t, "while the first edge is connected the keys of the workload cluster are recorded", func(t *testing.T) {
		edge, err := d.RunEdge(lab.EdgeSpec{Name: "edge-first", Bootstraps: [][]byte{first}})
		must(t, err)
		eventually(t, cluster.Reach)
		must(t, proc.Wait(t.Context(), 2*patience, recorded(cluster)))
		world.StopEdge(t, edge)
		must(t, os.RemoveAll(edge.StateDir))
	})
	var edge *lab.Agent
	node := ""
	token := d.File("pod-token")
	that(
		t, "when no edge is left and the bootstrap token has expired, a Pod enrols by the token of its ServiceAccount",
		func(t *testing.T) {
			must(t, proc.Wait(t.Context(), 3*tokenLifetime, func(context.Context) error {
				if time.Since(written) < tokenLifetime+time.Second {
					return errors.New("the bootstrap token is still valid")
				}
				return nil
			}))
			pod := d.writePodToken(t, cluster, token)
			node = model.NodeNameForPod(idOf(t, m), string(pod.UID))
			edge, err = d.RunEdge(lab.EdgeSpec{
				Name: "edge-pod", Bootstraps: [][]byte{first}, Flags: []string{"--service-account-token-file=" + token},
			})
			must(t, err)
			measured("pod_enrolled_s", world.Took(t, 2*patience, cluster.Reach).Seconds())
			if now := world.Steal(t, edge).Subject.Node; now != node {
				t.Errorf("it is the edge %s, want %s", now, node)
			}
		},
	)
	that(t, "a revoked Pod enrols again with no token, and with no key", func(t *testing.T) {
		spec["revokedEdges"] = []string{node}
		must(t, cluster.PatchTunnel(t.Context(), spec))
		world.StopEdge(t, edge)
		must(t, os.RemoveAll(edge.StateDir))
		edge.Resume()
		eventually(t, d.LogContains("edge-pod", "of this Pod is revoked"))
		if err := cluster.Reach(t.Context()); err == nil {
			t.Error("its tunnel works")
		}
	})
	that(t, "another Pod of the ServiceAccount is another edge", func(t *testing.T) {
		d.writePodToken(t, cluster, token)
		eventually(t, cluster.Reach)
	})
	world.StopEdge(t, edge)
}

// recorded returns a condition that is nil once the controller has recorded the keys of a workload cluster.
func recorded(c *lab.Cluster) func(context.Context) error {
	return func(ctx context.Context) error {
		tunnel, err := c.Tunnel(ctx)
		if err != nil {
			return err
		}
		if issuer := tunnel.Status.ServiceAccountIssuer; issuer == nil || len(issuer.Keys) == 0 {
			why := "not read"
			if issuer != nil {
				why += ": " + issuer.Error
			}
			return errors.New(why)
		}
		return nil
	}
}

// writePodToken creates a Pod in the workload cluster and writes its token, as a kubelet does.
func (d *doors) writePodToken(t *testing.T, cluster *lab.Cluster, file string) *corev1.Pod {
	t.Helper()
	inside := d.SNI.Client
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: podAccount}}
	must(t, client.IgnoreAlreadyExists(inside.Create(t.Context(), account)))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "edge-"},
		Spec:       corev1.PodSpec{ServiceAccountName: podAccount, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	must(t, inside.Create(t.Context(), pod))
	clients, err := kubernetes.NewForConfig(d.SNI.Config)
	must(t, err)
	tunnel, err := cluster.Tunnel(t.Context())
	must(t, err)
	seconds := int64(600)
	request, err := clients.CoreV1().ServiceAccounts("default").CreateToken(
		t.Context(), podAccount, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{podtoken.Audience(tunnel.Spec.ID)}, ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
			},
		}}, metav1.CreateOptions{},
	)
	must(t, err)
	must(t, os.WriteFile(file, []byte(request.Status.Token), 0o600))
	return pod
}
