package security

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/world"
)

// stolenID tries to take, as a namespace owner, the id of a Tunnel in another namespace: with an older Tunnel that
// waits paused without an id and then gets the victim's id, with a forged status that claims the same.
func (p *people) stolenID(t *testing.T) {
	cluster, tunnel := rivalCluster("thief"), rivalTunnel("thief", "")
	cluster.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	must(t, p.owner.Create(t.Context(), cluster))
	tunnel.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind("Cluster")),
	}
	must(t, p.owner.Create(t.Context(), tunnel))
	time.Sleep(1100 * time.Millisecond) // creation times have a resolution of a second
	mark, err := p.in.CreateCluster(
		t.Context(), lab.ClusterSpec{Name: "mark", Namespace: world.Namespace, APIServer: p.in.victim.APIServer},
	)
	must(t, err)
	defer func() { must(t, mark.Delete(t.Context())) }()
	victim := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: mark.Namespace, Name: mark.Name}}
	eventually(t, func(ctx context.Context) error { return accepted(ctx, p.admin, victim, v1alpha1.ReasonAccepted) })
	steal := func(ctx context.Context) error {
		after := tunnel.DeepCopy()
		after.Spec.ID = victim.Spec.ID
		if err := p.owner.Patch(ctx, after, client.MergeFrom(tunnel)); err != nil {
			return fmt.Errorf("choosing the id: %w", err)
		}
		return nil
	}
	forge := func(ctx context.Context) error {
		before := &v1alpha1.Tunnel{}
		if err := p.owner.Get(ctx, client.ObjectKeyFromObject(tunnel), before); err != nil {
			return err
		}
		after := before.DeepCopy()
		after.Status.ID = victim.Spec.ID
		return p.owner.Status().Patch(ctx, after, client.MergeFrom(before))
	}
	attack(
		t,
		"a namespace owner takes another namespace's tunnel ID",
		"policies tunnel-id and tunnel-status: both are rights of the installation",
		func(t *testing.T) {
			for what, try := range map[string]func(context.Context) error{
				"choosing the id":    steal,
				"forging the record": forge,
			} {
				if err := try(t.Context()); !apierrors.IsForbidden(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
			must(t, accepted(t.Context(), p.admin, victim, v1alpha1.ReasonAccepted))
		},
		func(t *testing.T) {
			p.withoutPolicies(t, func() {
				eventually(t, steal)
				eventually(t, forge)
				resumed := cluster.DeepCopy()
				resumed.Annotations = nil
				must(t, p.owner.Patch(t.Context(), resumed, client.MergeFrom(cluster)))
				eventually(t, func(ctx context.Context) error {
					return accepted(ctx, p.admin, tunnel.DeepCopy(), v1alpha1.ReasonAccepted)
				})
				eventually(t, func(ctx context.Context) error { return accepted(ctx, p.admin, victim, v1alpha1.ReasonNameTaken) })
			})
		},
	)
	must(t, client.IgnoreNotFound(p.admin.Delete(t.Context(), cluster)))
	must(t, client.IgnoreNotFound(p.admin.Delete(t.Context(), tunnel)))
}

// rejectedTunnel deletes a Tunnel whose claim of the victim's id was rejected. Only the installation can create such a
// Tunnel.
func (p *people) rejectedTunnel(t *testing.T) {
	attack(t, "a namespace owner deletes a rejected Tunnel with the victim's tunnel ID to end the victim's tunnel",
		"programs act only on ids that a Tunnel has (TestARejectedTunnelEndsNothingOfAnother, TestProgramsActOnHeldIDs)",
		func(t *testing.T) {
			before, err := p.victimIs(t.Context())
			must(t, err)
			victim, err := p.in.victim.Tunnel(t.Context())
			must(t, err)
			tunnel, cluster := rivalTunnel("rejected", victim.Spec.ID), rivalCluster("rejected")
			must(t, p.admin.Create(t.Context(), tunnel))
			must(t, p.owner.Create(t.Context(), cluster))
			eventually(t, func(ctx context.Context) error { return accepted(ctx, p.admin, tunnel, v1alpha1.ReasonNameTaken) })
			revokes := tunnel.DeepCopy()
			for _, e := range victim.Status.Edges {
				revokes.Spec.RevokedEdges = append(revokes.Spec.RevokedEdges, strings.TrimPrefix(e.NodeID, "CN="))
			}
			must(t, p.owner.Patch(t.Context(), revokes, client.MergeFrom(tunnel)))
			p.unharmed(t, before)
			must(t, p.owner.Delete(t.Context(), cluster))
			must(t, client.IgnoreNotFound(p.owner.Delete(t.Context(), tunnel)))
			eventually(t, func(ctx context.Context) error {
				if err := p.admin.Get(ctx, client.ObjectKeyFromObject(tunnel), tunnel); !apierrors.IsNotFound(err) {
					return fmt.Errorf("the Tunnel is still there: %w", err)
				}
				return nil
			})
			p.unharmed(t, before)
		}, nil)
}

// webhook requests the credentials of the tenant's own proxy, in place of a victim's, from the webhook without a
// certificate.
func (p *people) webhook(t *testing.T) {
	const password = "hunter2-of-the-proxy"
	tunnel, cluster := rivalTunnel("proxied", ""), rivalCluster("proxied")
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
		Mode: v1alpha1.KubeconfigModeSOCKS5, Proxy: &v1alpha1.ProxySpec{
			Address:           "proxy.example.org:1080",
			CredentialsSecret: "proxy",
		},
	}
	credentials := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: rivals, Name: "proxy"}, Type: corev1.SecretTypeBasicAuth,
		StringData: map[string]string{corev1.BasicAuthUsernameKey: "capi", corev1.BasicAuthPasswordKey: password},
	}
	kubeconfig := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: rivals,
			Name:      "proxied-kubeconfig",
			Labels:    map[string]string{clusterv1.ClusterNameLabel: "proxied"},
		},
		Data: map[string][]byte{
			"value": []byte(
				"apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]\n" +
					"contexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: x}}]\ncurrent-context: " +
					"x\n",
			),
		},
	}
	for _, o := range []client.Object{credentials, tunnel, cluster, kubeconfig.DeepCopy()} {
		must(t, p.admin.Create(t.Context(), o))
	}
	eventually(t, func(ctx context.Context) error {
		var now corev1.Secret
		if err := p.admin.Get(ctx, client.ObjectKeyFromObject(kubeconfig), &now); err != nil {
			return err
		}
		if !strings.Contains(string(now.Data["value"]), password) {
			return fmt.Errorf("the controller has not added the credentials yet")
		}
		return nil
	})
	attack(t, "an unauthenticated caller requests a proxy's credentials from the webhook",
		"the webhook reads no Secret, and keeps only what a request holds (TestTheWebhookDisclosesNoCredentials)",
		func(t *testing.T) {
			for _, operation := range []string{"CREATE", "UPDATE"} {
				answer, err := p.review(t.Context(), operation, kubeconfig)
				must(t, err)
				if !strings.Contains(answer, "socks5://") {
					t.Errorf("%s: the webhook does not answer for this Cluster: %s", operation, answer)
				}
				if strings.Contains(answer, password) {
					t.Errorf("%s: the answer has the credentials", operation)
				}
			}
		}, nil)
}

var inBase64 = regexp.MustCompile(`[A-Za-z0-9+/]{40,}=*`)

// review sends a request to the webhook's port. It returns the answer with all base64 in it decoded twice.
func (p *people) review(ctx context.Context, operation string, secret *corev1.Secret) (string, error) {
	object := map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": map[string]any{
		"uid": "forged", "operation": operation, "namespace": secret.Namespace, "name": secret.Name, "object": secret,
	}}
	body, err := json.Marshal(object)
	if err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(
		ctx, http.MethodPost, "https://127.0.0.1:9447/kubeconfigs", bytes.NewReader(body),
	)
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{
		DialContext:     p.in.Management.Namespace.DialContext,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // an attacker verifies nothing
	}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	out := string(answer)
	for range 2 {
		for _, text := range inBase64.FindAllString(out, -1) {
			if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
				out += "\n" + string(decoded)
			}
		}
	}
	return out, err
}
