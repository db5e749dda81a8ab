package tunnel

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/enrol"
)

// chooseReportToken returns the token for the Secret for boot reports and records it in a Tunnel's status. It is like
// chooseToken without counting uses: all machines of a workload cluster report with the token that was in the Secret
// when they were created. A token is replaced after half of its life, so a machine has the other half after its Secret
// was read.
func chooseReportToken(
	c config.Config, status *v1alpha1.TunnelStatus, secret *corev1.Secret, undelivered string, now time.Time,
) (token string, err error) {
	status.BootReportTokens = validReportTokens(status.BootReportTokens, now)
	fresh := func(token string) bool {
		i := records.TokenIndex(status.BootReportTokens, enrol.HashToken(token))
		return token != "" && i >= 0 && now.Before(replaceAt(c, status.BootReportTokens[i]))
	}
	if secret == nil { // deleting the Secret ends the tokens in it
		status.BootReportTokens = endReports(status.BootReportTokens, undelivered)
	} else if token = tokenIn(secret); fresh(token) {
		return token, nil
	}
	if fresh(undelivered) {
		return undelivered, nil
	}
	if token, err = enrol.RandomReportToken(); err != nil {
		return "", err
	}
	record := v1alpha1.TokenStatus{
		SHA256: enrol.HashToken(token), ExpiresAt: metav1.NewTime(now.Add(c.TokenLifetime).Truncate(time.Second)),
	}
	status.BootReportTokens = validReportTokens(append(status.BootReportTokens, record), now)
	return token, nil
}

// endReports removes the records of all tokens for boot reports, except one.
func endReports(tokens []v1alpha1.TokenStatus, except string) []v1alpha1.TokenStatus {
	hash := enrol.HashToken(except)
	return slices.DeleteFunc(slices.Clone(tokens), func(t v1alpha1.TokenStatus) bool { return t.SHA256 != hash })
}

// validReportTokens removes the records of expired tokens, and the oldest beyond the limit. Usually there are two.
func validReportTokens(tokens []v1alpha1.TokenStatus, now time.Time) []v1alpha1.TokenStatus {
	left := slices.DeleteFunc(
		slices.Clone(tokens), func(t v1alpha1.TokenStatus) bool { return !now.Before(t.ExpiresAt.Time) },
	)
	return left[max(0, len(left)-maxTokens):]
}

// reportDelivery is the pending work on a Secret for boot reports after its token was recorded.
type reportDelivery struct {
	have  *corev1.Secret
	token string        // empty: nothing is delivered
	due   time.Duration // when the token must be replaced
}

// prepareReports chooses the token for boot reports of a Tunnel.
func (r *Reconciler) prepareReports(
	ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, now time.Time,
) (d reportDelivery, err error) {
	if d.have, err = r.reportSecret(ctx, tunnel); err != nil {
		return d, err
	}
	if d.have == nil && !tunnel.DeletionTimestamp.IsZero() {
		status.BootReportTokens = nil
		return d, nil // as in chooseTokens
	}
	undelivered := r.undelivered.get(client.ObjectKeyFromObject(tunnel)).report
	if d.token, err = chooseReportToken(r.Config, status, d.have, undelivered, now); err != nil {
		return d, err
	}
	if i := records.TokenIndex(status.BootReportTokens, enrol.HashToken(d.token)); i >= 0 {
		d.due = max(0, replaceAt(r.Config, status.BootReportTokens[i]).Sub(now))
	}
	return d, nil
}

// reportSecret reads the Secret for boot reports from the apiserver; nil: it does not exist.
func (r *Reconciler) reportSecret(ctx context.Context, tunnel *v1alpha1.Tunnel) (*corev1.Secret, error) {
	key := client.ObjectKey{Namespace: tunnel.Namespace, Name: tunnel.Name + v1alpha1.BootReportSecretSuffix}
	secret, err := objects.Get(ctx, r.Live, key, &corev1.Secret{})
	return secret, objects.Wrap("reading Secret for boot reports", err)
}

// deliverReports creates the Secret for boot reports, or patches what differs. The file is like an edge's bootstrap
// file with another token.
func (r *Reconciler) deliverReports(
	ctx context.Context, tunnel *v1alpha1.Tunnel, d reportDelivery, file bootstrapFile,
) error {
	if d.token == "" {
		return nil
	}
	file.ID, file.Token = tunnel.ClaimedID(), d.token
	content, err := yaml.Marshal(file)
	if err != nil {
		return fmt.Errorf("writing file for boot reports: %w", err)
	}
	want := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: tunnel.Namespace, Name: tunnel.Name + v1alpha1.BootReportSecretSuffix},
	}
	if d.have != nil {
		want = d.have.DeepCopy()
	}
	want.Labels = maps.Clone(want.Labels)
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[v1alpha1.BootstrapLabel] = v1alpha1.BootstrapReport
	want.OwnerReferences = []metav1.OwnerReference{objects.OwnerRef(v1alpha1.GroupVersion.WithKind("Tunnel"), tunnel)}
	want.Data = map[string][]byte{v1alpha1.BootReportFileKey: content, v1alpha1.BootstrapTokenKey: []byte(d.token)}
	switch {
	case d.have == nil:
		return objects.Wrap("creating Secret for boot reports", r.Client.Create(ctx, want))
	case equality.Semantic.DeepEqual(want, d.have):
		return nil
	}
	return objects.Wrap("updating Secret for boot reports", r.Client.Patch(ctx, want, objects.LockedPatch(d.have)))
}

// deleteReportSecret deletes the Secret for boot reports of a Tunnel, if it belongs to that Tunnel.
func (r *Reconciler) deleteReportSecret(ctx context.Context, tunnel *v1alpha1.Tunnel) error {
	secret, err := r.reportSecret(ctx, tunnel)
	if err != nil || secret == nil || !metav1.IsControlledBy(secret, tunnel) {
		return err
	}
	err = r.Client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID})
	return client.IgnoreNotFound(objects.Wrap("deleting Secret for boot reports", err))
}
