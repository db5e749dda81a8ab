// Package signer answers the CertificateSigningRequests of the xds-servers. It validates the request, the Tunnel and
// the token, records the edge and the use of the token in the status of the Tunnel, and then signs or denies. Its input
// is a request; its output is a certificate or a reason. It does not know how the CA is rotated, and has no connection
// to edges.
package signer

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
	"github.com/fairlead/fairlead/pkg/controller/ca"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
)

// Reconciler approves or denies the CertificateSigningRequests of the xds-server, and signs the approved ones.
type Reconciler struct {
	reconciler.Deps
}

// Reconcile processes one CertificateSigningRequest completely.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	csr, err := objects.Get(ctx, r.Client, request.NamespacedName, &certificatesv1.CertificateSigningRequest{})
	if err != nil || csr == nil || !open(csr) {
		return reconcile.Result{}, objects.Wrap("reading CertificateSigningRequest", err)
	}
	return reconciler.Retry(reconcile.Result{}, r.answer(ctx, csr))
}

// open reports whether a CertificateSigningRequest is ours and has no answer yet.
func open(csr *certificatesv1.CertificateSigningRequest) bool {
	_, ours := profiles[csr.Spec.SignerName]
	return ours && len(csr.Status.Certificate) == 0 &&
		!objects.HasCondition(csr, certificatesv1.CertificateDenied) &&
		!objects.HasCondition(csr, certificatesv1.CertificateFailed)
}

// answer denies a request, or counts, approves and signs it. Each step can be repeated: after a crash the next attempt
// continues where the last one stopped.
func (r *Reconciler) answer(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
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
	if err := r.sign(ctx, csr, ca, wanted); err != nil {
		return err
	}
	r.recordEnrolment(wanted)
	return nil
}

// check parses a request and records its edge, or returns a *refusal.
func (r *Reconciler) check(
	ctx context.Context, csr *certificatesv1.CertificateSigningRequest,
) (request, *ca.Issuer, error) {
	now := r.Now()
	wanted, err := readRequest(r.Config, csr, now)
	if err != nil {
		return request{}, nil, err
	}
	// Before anything is counted.
	ca, err := ca.Load(ctx, r.Config, r.Live, wanted.subject.Role, now)
	if err != nil {
		return request{}, nil, err
	}
	if end := ca.NotAfter(); wanted.notAfter.After(end) {
		wanted.notAfter = end
	}
	if wanted.subject.Role.Enrols() {
		wanted.created = csr.CreationTimestamp.Time
		err = r.admitEdge(ctx, &wanted)
	}
	return wanted, ca, err
}

// admitEdge checks that the tunnel of an edge exists and that its token is valid, and records the edge. It does so in
// one write, which is a conflict if the Tunnel has changed since it was read, so a token is never used more often than
// allowed.
func (r *Reconciler) admitEdge(ctx context.Context, wanted *request) error {
	key := client.ObjectKey(wanted.tunnel)
	tunnel, err := objects.Get(ctx, r.Live, key, &v1alpha1.Tunnel{})
	if err != nil {
		return objects.Wrap("reading Tunnel", err)
	}
	served, err := r.served(ctx, tunnel)
	if err != nil {
		return err
	}
	if no := wanted.checkTunnel(tunnel, served); no != nil {
		return r.recordRefusal(tunnel, *wanted, no)
	}
	pod, no := wanted.verifyPod(tunnel, served, r.Now())
	if no != nil {
		return r.recordRefusal(tunnel, *wanted, no)
	}
	after := tunnel.DeepCopy()
	if no := wanted.enter(&after.Status, pod, r.Now()); no != nil {
		return r.recordRefusal(tunnel, *wanted, no)
	}
	// After a failed attempt, the edge is on record since the request was created.
	before := records.EdgeOf(tunnel.Status.Edges, wanted.subject.Node)
	if before == nil || !before.EnrolledAt.Time.Before(wanted.created) {
		wanted.enrols = after
	}
	if equality.Semantic.DeepEqual(after.Status, tunnel.Status) {
		return nil
	}
	if err := r.Client.Status().Patch(ctx, after, objects.LockedPatch(tunnel)); err != nil {
		return objects.Wrap("recording edge in Tunnel", err)
	}
	return nil
}

// served returns the Cluster whose edges or apiservers enrol with a Tunnel, by the live objects: an empty one for a
// prepared Tunnel, and nil if there is none.
func (r *Reconciler) served(ctx context.Context, tunnel *v1alpha1.Tunnel) (*clusterv1.Cluster, error) {
	if tunnel == nil {
		return nil, nil
	}
	cluster, err := objects.ClusterOf(ctx, r.Live, tunnel)
	return records.ServedCluster(cluster, tunnel, r.Now()), err
}

// recordEnrolment records an event on the Tunnel if an edge has received its first certificate.
func (r *Reconciler) recordEnrolment(wanted request) {
	if wanted.enrols != nil && r.Recorder != nil {
		condition.Record(
			r.Recorder, r.Log, wanted.enrols,
			[]condition.Transition{{
				Condition: "", EventType: corev1.EventTypeNormal, Reason: v1alpha1.EventEdgeEnrolled,
				Message: "edge " + wanted.subject.Node + wanted.on() + " enrolled and has its first certificate",
			}},
		)
	}
}

// recordRefusal returns a refusal, and records an event on the Tunnel, if there is one, with the reason.
func (r *Reconciler) recordRefusal(tunnel *v1alpha1.Tunnel, wanted request, no *refusal) error {
	if tunnel != nil && r.Recorder != nil {
		condition.Record(
			r.Recorder, r.Log, tunnel,
			[]condition.Transition{{
				Condition: "", EventType: corev1.EventTypeWarning, Reason: v1alpha1.EventEdgeRefused,
				Message: "edge " + wanted.subject.Node + wanted.on() + " is denied a certificate: " + condition.Shorten(no.Error()),
			}},
		)
	}
	return no
}

// on returns where an edge runs, by its own report.
func (q request) on() string {
	if q.host == "" {
		return ""
	}
	return " on " + q.host
}

// approve marks a request as checked. The condition names the approver, which completes the audit log.
func (r *Reconciler) approve(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	if objects.HasCondition(csr, certificatesv1.CertificateApproved) {
		return nil
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Checked",
		Message:        "checked by Fairlead's controller",
		LastUpdateTime: metav1.NewTime(r.Now()),
	})
	return objects.Wrap("approving CertificateSigningRequest", r.Client.SubResource("approval").Update(ctx, csr))
}

// sign issues the leaf. All of its content comes from the checked request, and only its key from the CSR.
func (r *Reconciler) sign(
	ctx context.Context, csr *certificatesv1.CertificateSigningRequest, ca *ca.Issuer, wanted request,
) (err error) {
	ctx, span := traces.Begin(ctx, "sign", "role", string(wanted.subject.Role), "node", wanted.subject.Node)
	defer func() { reconciler.EndSpan(span, err) }()
	chain, err := ca.Issue(wanted.key, certs.Leaf{
		CommonName: wanted.subject.Node,
		DNSNames:   r.Config.Domain.DNSNames(wanted.subject),
		Server:     wanted.profile.server,
		Client:     wanted.profile.client,
		NotBefore:  csr.CreationTimestamp.Add(-certs.ClockSkew),
		NotAfter:   wanted.notAfter,
	})
	if err != nil {
		return err
	}
	csr.Status.Certificate = chain
	if err := r.Client.Status().Update(ctx, csr); err != nil {
		return objects.Wrap("signing CertificateSigningRequest", err)
	}
	r.Log.Info("leaf issued", "request", csr.Name, "role", string(wanted.subject.Role), "node", wanted.subject.Node,
		"cluster", wanted.tunnel.String(), "tunnel", wanted.subject.ID, "not_after", wanted.notAfter, "ca", ca.Serial())
	return nil
}

// deny denies a request. A request that was approved before can only be marked as failed.
func (r *Reconciler) deny(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, no *refusal) error {
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: no.reason,
		Message:        condition.Shorten(no.message),
		LastUpdateTime: metav1.NewTime(r.Now()),
	}
	update := r.Client.SubResource("approval").Update
	if objects.HasCondition(csr, certificatesv1.CertificateApproved) {
		condition.Type, update = certificatesv1.CertificateFailed, r.Client.Status().Update
	}
	csr.Status.Conditions = append(csr.Status.Conditions, condition)
	if err := update(ctx, csr); err != nil {
		return fmt.Errorf("denying CertificateSigningRequest: %w", err)
	}
	r.Log.Warn("certificate denied", "request", csr.Name, "reason", no.reason, "message", no.message)
	return nil
}

// unanswered passes the requests that have no answer yet.
var unanswered = predicate.NewPredicateFuncs(func(o client.Object) bool {
	csr, ok := o.(*certificatesv1.CertificateSigningRequest)
	return ok && open(csr)
})

// Setup adds the reconciler to a manager. It starts nothing.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("signer").
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(unanswered)).
		WithOptions(reconciler.Options(signerWorkers, "request", r.Log)).
		Complete(reconciler.Traced{Name: "signer", Reconciler: r})
}

// signerWorkers is how many requests are answered concurrently.
const signerWorkers = 4

// New returns the reconciler of CertificateSigningRequests.
func New(p reconciler.Deps) *Reconciler {
	return &Reconciler{Deps: p}
}
