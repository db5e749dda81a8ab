package controller

import (
	"context"
	"errors"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// signer approves or denies the CertificateSigningRequests of the xds-server, and signs those that it approved.
type signer struct {
	deps
}

// Reconcile takes one CertificateSigningRequest to its end.
func (r *signer) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	csr, err := get(ctx, r.client, request.NamespacedName, &certificatesv1.CertificateSigningRequest{})
	if err != nil || csr == nil || !open(csr) {
		return reconcile.Result{}, wrap("reading CertificateSigningRequest", err)
	}
	err = r.answer(ctx, csr)
	if conflict(err) {
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return reconcile.Result{}, err
}

// open says whether a CertificateSigningRequest is ours and waits for an answer.
func open(csr *certificatesv1.CertificateSigningRequest) bool {
	_, ours := profiles[csr.Spec.SignerName]
	return ours && len(csr.Status.Certificate) == 0 &&
		!hasCondition(csr, certificatesv1.CertificateDenied) && !hasCondition(csr, certificatesv1.CertificateFailed)
}

// answer denies a request, or counts, approves and signs it. Each step can be repeated: whoever comes after a crash goes on
// where the last one stopped.
func (r *signer) answer(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	wanted, ca, err := r.check(ctx, csr)
	var no *refusal
	if errors.As(err, &no) {
		return r.deny(ctx, csr, no)
	}
	if err != nil {
		return err
	}
	if err := r.approve(ctx, csr); err != nil {
		return err
	}
	return r.sign(ctx, csr, ca, wanted)
}

// check reads a request and notes it where it has to be noted, or says no with a *refusal.
func (r *signer) check(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (request, *issuer, error) {
	now := r.now()
	wanted, err := readRequest(r.config, csr, now)
	if err != nil {
		return request{}, nil, err
	}
	// Before anything is counted.
	ca, err := loadCA(r.config, ctx, r.live, wanted.subject.Role, now)
	if err != nil {
		return request{}, nil, err
	}
	if end := ca.NotAfter(); wanted.notAfter.After(end) {
		wanted.notAfter = end
	}
	if wanted.subject.Role == model.RoleEdge {
		err = r.admitEdge(ctx, wanted)
	}
	return wanted, ca, err
}

// admitEdge checks that the tunnel of an edge lives and that its token is good, and notes the edge: in one write that fails
// if anybody has changed the Tunnel since it was read. So a token is never used more often than it may be.
func (r *signer) admitEdge(ctx context.Context, wanted request) error {
	key := client.ObjectKey(wanted.tunnel)
	tunnel, err := get(ctx, r.live, key, &v1alpha1.Tunnel{})
	if err != nil {
		return wrap("reading Tunnel", err)
	}
	cluster, err := get(ctx, r.live, key, &clusterv1.Cluster{})
	if err != nil {
		return wrap("reading Cluster", err)
	}
	if no := wanted.checkTunnel(tunnel, cluster, r.now()); no != nil {
		return r.told(tunnel, wanted, no)
	}
	after := tunnel.DeepCopy()
	if no := wanted.enter(&after.Status, r.now()); no != nil {
		return r.told(tunnel, wanted, no)
	}
	if equality.Semantic.DeepEqual(after.Status, tunnel.Status) {
		return nil
	}
	if err := r.client.Status().Patch(ctx, after, lockedPatch(tunnel)); err != nil {
		return wrap("noting edge in Tunnel", err)
	}
	if ofNode(tunnel.Status.Edges, wanted.subject.Node) == nil && r.recorder != nil {
		tell(r.recorder, r.log, after, []transition{{"", corev1.EventTypeNormal, v1alpha1.EventEdgeEnrolled, "the edge " + wanted.subject.Node + wanted.on() + " has its first certificate"}})
	}
	return nil
}

// told returns a refusal, and says in an event of the Tunnel, if there is one, that an edge was refused, and why.
func (r *signer) told(tunnel *v1alpha1.Tunnel, wanted request, no *refusal) error {
	if tunnel != nil && r.recorder != nil {
		tell(r.recorder, r.log, tunnel, []transition{{"", corev1.EventTypeWarning, v1alpha1.EventEdgeRefused, "the edge " + wanted.subject.Node + wanted.on() + " gets no certificate: " + shorten(no.Error())}})
	}
	return no
}

// on is where an edge says that it runs.
func (q request) on() string {
	if q.host == "" {
		return ""
	}
	return " on " + q.host
}

// approve marks a request as checked. It is told by whom: the audit log then has all of the story.
func (r *signer) approve(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	if hasCondition(csr, certificatesv1.CertificateApproved) {
		return nil
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Checked", Message: "checked by Fairlead's controller",
		LastUpdateTime: metav1.NewTime(r.now()),
	})
	return wrap("approving CertificateSigningRequest", r.client.SubResource("approval").Update(ctx, csr))
}

// sign issues the leaf. All that it says comes from the request that was checked, nothing from the CSR but its key.
func (r *signer) sign(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, ca *issuer, wanted request) (err error) {
	ctx, span := traces.Begin(ctx, "sign", "role", string(wanted.subject.Role), "node", wanted.subject.Node)
	defer func() { endSpan(span, err) }()
	chain, err := ca.Issue(wanted.key, certs.Leaf{
		CommonName: wanted.subject.Node,
		DNSNames:   r.config.Domain.DNSNames(wanted.subject),
		Server:     true,
		Client:     wanted.profile.client,
		NotBefore:  csr.CreationTimestamp.Add(-certs.ClockSkew),
		NotAfter:   wanted.notAfter,
	})
	if err != nil {
		return err
	}
	csr.Status.Certificate = chain
	if err := r.client.Status().Update(ctx, csr); err != nil {
		return wrap("signing CertificateSigningRequest", err)
	}
	r.log.Info("leaf issued", "request", csr.Name, "role", string(wanted.subject.Role), "node", wanted.subject.Node,
		"cluster", wanted.tunnel.String(), "tunnel", wanted.subject.ID, "not_after", wanted.notAfter, "ca", ca.Serial())
	return nil
}

// deny says no. A request that was approved before can only be failed.
func (r *signer) deny(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, no *refusal) error {
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: no.reason, Message: shorten(no.message),
		LastUpdateTime: metav1.NewTime(r.now()),
	}
	update := r.client.SubResource("approval").Update
	if hasCondition(csr, certificatesv1.CertificateApproved) {
		condition.Type, update = certificatesv1.CertificateFailed, r.client.Status().Update
	}
	csr.Status.Conditions = append(csr.Status.Conditions, condition)
	if err := update(ctx, csr); err != nil {
		return fmt.Errorf("denying CertificateSigningRequest: %w", err)
	}
	r.log.Warn("certificate denied", "request", csr.Name, "reason", no.reason, "message", no.message)
	return nil
}

func (r *signer) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("signer").
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			csr, ok := o.(*certificatesv1.CertificateSigningRequest)
			return ok && open(csr)
		}))).
		WithOptions(options(signerWorkers, "request", r.log)).
		Complete(traced{"signer", r})
}

// signerWorkers is how many requests are answered at a time.
const signerWorkers = 4

// newSigner returns the reconciler of CertificateSigningRequests.
func newSigner(p deps) *signer {
	return &signer{deps: p}
}
