package tunnel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxTokens bounds the token records of one Tunnel before those of used-up tokens are removed. Usually there are two:
// the token in the Secret and its predecessor.
const maxTokens = 8

// maxRecords bounds all token records of one Tunnel, whatever their uses. It is far more than the tokens that machines
// can have at a time, and keeps the status small if a bootstrap Secret cannot be written for a long time.
const maxRecords = 100

// bootstrapFile is what edge-agent reads: bootstrap.yaml.
type bootstrapFile struct {
	// of the Tunnel; an edge-agent compares it with its stored identity
	ID string `json:"id"`
	// of the certificate; empty: edge
	Role         string `json:"role,omitempty"`
	Gateway      string `json:"gateway"`
	TunnelDomain string `json:"tunnelDomain"`
	Token        string `json:"token"`
	CA           string `json:"ca"`
}

// bootstrapCommand is pasted into a root shell on a machine in the workload network. The quotes around EOF prevent the
// shell from expanding the file's content; umask prevents other users from reading the file.
const bootstrapCommand = `install -d -m 0755 /etc/fairlead
(umask 077; cat >/etc/fairlead/bootstrap.yaml) <<'EOF'
%sEOF
edge-agent run --bootstrap /etc/fairlead/bootstrap.yaml
`

// of returns the file with the id of a Tunnel, whose decision is on record.
func (f bootstrapFile) of(tunnel *v1alpha1.Tunnel) bootstrapFile {
	f.ID = tunnel.ClaimedID()
	if tunnel.Spec.EgressOf != "" {
		f.Role = string(model.RoleEgress)
	}
	return f
}

// data returns the content of a bootstrap Secret.
func (f bootstrapFile) data() (map[string][]byte, error) {
	file, err := yaml.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("writing bootstrap file: %w", err)
	}
	return map[string][]byte{
		v1alpha1.BootstrapFileKey:    file,
		v1alpha1.BootstrapCommandKey: fmt.Appendf(nil, bootstrapCommand, file),
		v1alpha1.BootstrapTokenKey:   []byte(f.Token),
		v1alpha1.BootstrapCAKey:      []byte(f.CA),
		v1alpha1.BootstrapGatewayKey: []byte(f.Gateway),
		v1alpha1.BootstrapDomainKey:  []byte(f.TunnelDomain),
	}, nil
}

// freshToken reports whether a token is on record with at least half of its life and half of its uses left, and with as
// many uses as are configured now. Readers of the Secret then have that time to start a machine.
func freshToken(c config.Config, tokens []v1alpha1.TokenStatus, token string, now time.Time) bool {
	i := records.TokenIndex(tokens, enrol.HashToken(token))
	return token != "" && i >= 0 && now.Before(replaceAt(c, tokens[i])) && tokens[i].MaxUses == c.TokenUses &&
		2*tokens[i].Uses <= tokens[i].MaxUses
}

// replaceAt returns when a token in the bootstrap Secret must be replaced.
func replaceAt(c config.Config, token v1alpha1.TokenStatus) time.Time {
	return token.ExpiresAt.Add(-c.TokenLifetime / 2)
}

// newRecord returns the record of a new token.
func newRecord(c config.Config, token string, now time.Time) v1alpha1.TokenStatus {
	return v1alpha1.TokenStatus{
		SHA256: enrol.HashToken(token), ExpiresAt: metav1.NewTime(now.Add(c.TokenLifetime).Truncate(time.Second)),
		MaxUses: c.TokenUses,
	}
}

// requeueAfter returns when the token of a served Tunnel is due. A token that is not on record is due at once.
func requeueAfter(c config.Config, status v1alpha1.TunnelStatus, token string, now time.Time) time.Duration {
	var wait time.Duration
	if i := records.TokenIndex(status.Tokens, enrol.HashToken(token)); i >= 0 {
		wait = max(0, replaceAt(c, status.Tokens[i]).Sub(now))
	}
	// Spread, so that Clusters that were created together are not reconciled together for ever.
	return max(wait, time.Second) + rand.N(wait/10+time.Second)
}

// validTokens removes the records of expired tokens and, beyond maxTokens, the oldest used-up ones. Other used-up
// tokens stay, so that a late machine receives the reason of its rejection. A token with uses left stays, because it
// may be on a machine: see boundTokens. The order, oldest first, is kept.
func validTokens(tokens []v1alpha1.TokenStatus, now time.Time) []v1alpha1.TokenStatus {
	left := slices.DeleteFunc(
		slices.Clone(tokens), func(t v1alpha1.TokenStatus) bool { return !now.Before(t.ExpiresAt.Time) },
	)
	extra := len(left) - maxTokens
	return slices.DeleteFunc(left, func(t v1alpha1.TokenStatus) bool {
		if extra <= 0 || t.Uses < t.MaxUses {
			return false
		}
		extra--
		return true
	})
}

// tokenIn returns the token in a Secret; empty: there is none, or no Secret.
func tokenIn(secret *corev1.Secret) string {
	if secret == nil {
		return ""
	}
	return string(secret.Data[v1alpha1.BootstrapTokenKey])
}

// endUnused removes the records of tokens with uses left, except one. Deleting the bootstrap Secret ends the token in
// it with all copies: a stolen token cannot be ended in another way before it is used. Records of used-up tokens stay,
// so that a late machine receives the reason.
func endUnused(tokens []v1alpha1.TokenStatus, except string) []v1alpha1.TokenStatus {
	hash := enrol.HashToken(except)
	return slices.DeleteFunc(
		slices.Clone(tokens), func(t v1alpha1.TokenStatus) bool { return t.Uses < t.MaxUses && t.SHA256 != hash },
	)
}

// boundTokens removes the oldest records beyond maxRecords, except that of the token in the bootstrap Secret, which
// every new machine has.
func boundTokens(tokens []v1alpha1.TokenStatus, inSecret string) []v1alpha1.TokenStatus {
	extra, hash := len(tokens)-maxRecords, enrol.HashToken(inSecret)
	return slices.DeleteFunc(tokens, func(t v1alpha1.TokenStatus) bool {
		if extra <= 0 || t.SHA256 == hash {
			return false
		}
		extra--
		return true
	})
}

// chooseToken returns the token for the bootstrap Secret and records it in a Tunnel's status. The Secret is written
// after the status, so that no token is delivered that is not on record. If the Secret does not exist, every token
// ends, except one that was recorded before and never delivered: that is chosen again.
func chooseToken(
	c config.Config, status *v1alpha1.TunnelStatus, secret *corev1.Secret, undelivered string, now time.Time,
) (token string, err error) {
	status.Tokens = validTokens(status.Tokens, now)
	inSecret := tokenIn(secret)
	switch {
	case freshToken(c, status.Tokens, inSecret, now):
		return inSecret, nil
	case secret == nil:
		status.Tokens = endUnused(status.Tokens, undelivered)
	}
	if freshToken(c, status.Tokens, undelivered, now) {
		return undelivered, nil
	}
	if token, err = enrol.RandomToken(); err != nil {
		return "", err
	}
	status.Tokens = boundTokens(validTokens(append(status.Tokens, newRecord(c, token, now)), now), inSecret)
	return token, nil
}

// bootstrapSecret reads the bootstrap Secret of a Cluster; nil: it does not exist. It reads from the apiserver: the
// cache has only metadata, and an outdated copy would result in a superfluous token.
func (r *Reconciler) bootstrapSecret(ctx context.Context, key client.ObjectKey) (*corev1.Secret, error) {
	key.Name += v1alpha1.BootstrapSecretSuffix
	secret, err := objects.Get(ctx, r.Live, key, &corev1.Secret{})
	return secret, objects.Wrap("reading bootstrap Secret", err)
}

// writeBootstrapSecret creates the bootstrap Secret of a Tunnel, or patches what differs.
func (r *Reconciler) writeBootstrapSecret(
	ctx context.Context, tunnel *v1alpha1.Tunnel, have *corev1.Secret, file bootstrapFile,
) error {
	data, err := file.of(tunnel).data()
	if err != nil {
		return err
	}
	if have == nil {
		want := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: tunnel.Namespace, Name: tunnel.Name + v1alpha1.BootstrapSecretSuffix},
		}
		fillBootstrapSecret(want, tunnel, data)
		return objects.Wrap("creating bootstrap Secret", r.Client.Create(ctx, want))
	}
	want := have.DeepCopy()
	fillBootstrapSecret(want, tunnel, data)
	if equality.Semantic.DeepEqual(want, have) {
		return nil
	}
	return objects.Wrap("updating bootstrap Secret", r.Client.Patch(ctx, want, objects.LockedPatch(have)))
}

func fillBootstrapSecret(secret *corev1.Secret, tunnel *v1alpha1.Tunnel, data map[string][]byte) {
	secret.Labels = maps.Clone(secret.Labels)
	if secret.Labels == nil {
		secret.Labels = map[string]string{}
	}
	secret.Labels[v1alpha1.BootstrapLabel] = v1alpha1.BootstrapEdge
	secret.OwnerReferences = []metav1.OwnerReference{objects.OwnerRef(v1alpha1.GroupVersion.WithKind("Tunnel"), tunnel)}
	secret.Data = data
}

// deleteBootstrapSecret deletes the bootstrap Secret of a Tunnel, and the Secrets for boot reports and for a
// ClusterResourceSet, if they belong to that Tunnel.
func (r *Reconciler) deleteBootstrapSecret(ctx context.Context, tunnel *v1alpha1.Tunnel) error {
	if err := errors.Join(r.deleteReportSecret(ctx, tunnel), r.deleteResources(ctx, tunnel)); err != nil {
		return err
	}
	secret, err := r.bootstrapSecret(ctx, client.ObjectKeyFromObject(tunnel))
	if err != nil || secret == nil || !metav1.IsControlledBy(secret, tunnel) {
		return err
	}
	err = r.Client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID})
	return client.IgnoreNotFound(objects.Wrap("deleting bootstrap Secret", err))
}

// DropExpired deletes the bootstrap Secret of a paused Tunnel when no token on record can enrol an edge any more, and
// returns when that will be. Cluster API's bootstrap provider then has new machines wait for the Secret that is created
// after the pause: with its token they would boot and get no edge. While the Cluster is paused no machine boots, and
// its Secrets stay, because they may be moving. The caller has found the Tunnel or its RemoteNetwork paused.
func (r *Reconciler) DropExpired(
	ctx context.Context, cluster *clusterv1.Cluster, of *v1alpha1.Tunnel,
) (reconcile.Result, error) {
	if !of.DeletionTimestamp.IsZero() || of.HeldID() == "" || !decision.ServedFor(of, cluster.UID) ||
		objects.Paused(objects.Group{Cluster: cluster}) {
		return reconcile.Result{}, nil
	}
	if left := lifeLeft(of, r.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	key := client.ObjectKeyFromObject(of)
	secret, err := r.bootstrapSecret(ctx, key)
	if err != nil || secret == nil || !metav1.IsControlledBy(secret, of) {
		return reconcile.Result{}, err
	}
	// The cache may have neither the latest token nor the latest pause of the Cluster.
	of, err = objects.Get(ctx, r.Live, key, &v1alpha1.Tunnel{})
	if err != nil || of == nil || lifeLeft(of, r.Now()) > 0 {
		return reconcile.Result{}, objects.Wrap("reading Tunnel", err)
	}
	cluster, err = objects.Get(ctx, r.Live, client.ObjectKeyFromObject(cluster), &clusterv1.Cluster{})
	if err != nil || cluster == nil || objects.Paused(objects.Group{Cluster: cluster}) {
		return reconcile.Result{}, objects.Wrap("reading Cluster", err)
	}
	r.Log.Info("bootstrap Secret deleted: its token can enrol nothing, and is not replaced during a pause",
		"name", key.String())
	unchanged := client.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}
	err = r.Client.Delete(ctx, secret, unchanged)
	return reconcile.Result{}, client.IgnoreNotFound(objects.Wrap("deleting bootstrap Secret", err))
}

// lifeLeft returns for how long a token on record can enrol an edge of a Tunnel.
func lifeLeft(of *v1alpha1.Tunnel, now time.Time) (left time.Duration) {
	for _, t := range of.Status.Tokens {
		if t.Uses < t.MaxUses {
			left = max(left, t.ExpiresAt.Sub(now))
		}
	}
	return left
}
