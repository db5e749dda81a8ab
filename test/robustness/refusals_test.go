package robustness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/pki"
)

const (
	// refusal is the name of the objects that make the apiserver refuse.
	refusal = "robustness-refusal"
	// refusalAddress is where the webhook listens.
	refusalAddress = "127.0.0.1:9490"
	// refusalTimeout is how long the apiserver waits for the webhook.
	refusalTimeout = 3 * time.Second
	// ours is the group of all ServiceAccounts of the installation.
	ours = "system:serviceaccounts:" + lab.InstallationNamespace
)

// refuse makes the apiserver of the management cluster refuse requests of ours until the returned function is called.
// Requests of everyone else work.
func (in *installation) refuse(ctx context.Context, action Action) (end func() error, err error) {
	objects, server := tooMany(), (*http.Server)(nil)
	if action == Fail {
		if objects, server, err = in.failingWebhook(ctx); err != nil {
			return nil, err
		}
	}
	end = func() error {
		var errs []error
		for _, o := range objects {
			errs = append(errs, in.again(ctx, func(ctx context.Context) error {
				return client.IgnoreNotFound(in.Management.Client.Delete(ctx, o))
			}))
		}
		if server != nil {
			errs = append(errs, server.Close())
		}
		return errors.Join(errs...)
	}
	for _, o := range objects {
		err := in.again(ctx, func(ctx context.Context) error {
			return client.IgnoreAlreadyExists(in.Management.Client.Create(ctx, o))
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("creating a refusal: %w", err), end())
		}
	}
	return end, nil
}

// tooMany returns objects that leave no seat for our requests, so that each of them is answered with 429:
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/.
func tooMany() []client.Object {
	level := &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: refusal},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: ptr.To(int32(0)), BorrowingLimitPercent: ptr.To(int32(0)),
				LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
			},
		},
	}
	flow := &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: refusal},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: refusal},
			MatchingPrecedence:         2, // 1 is that of the schema exempt
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{
					Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: ours},
				}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"},
					ClusterScope: true,
				}},
			}},
		},
	}
	return []client.Object{level, flow}
}

// failingWebhook starts a webhook that our writes fail at, each in another way, and returns its configuration.
func (in *installation) failingWebhook(ctx context.Context) ([]client.Object, *http.Server, error) {
	authority, err := pki.NewAuthority("refusals")
	if err != nil {
		return nil, nil, err
	}
	pair, err := authority.Issue(pki.LeafSpec{
		CommonName: "refusals", Names: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		return nil, nil, err
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return nil, nil, err
	}
	listener, err := in.Network.Management.Listen(ctx, refusalAddress)
	if err != nil {
		return nil, nil, fmt.Errorf("starting a webhook: %w", err)
	}
	server := &http.Server{Handler: failing(), ReadHeaderTimeout: refusalTimeout}
	go func() {
		_ = server.Serve(tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}}))
	}()
	all := admissionregistrationv1.Rule{
		APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"},
		Scope: ptr.To(admissionregistrationv1.AllScopes),
	}
	return []client.Object{&admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: refusal},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "refusal.fairlead.test", AdmissionReviewVersions: []string{"v1"},
			SideEffects:    ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds: ptr.To(int32(refusalTimeout.Seconds())), FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: ptr.To("https://" + refusalAddress), CABundle: authority.CertPEM,
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll}, Rule: all,
			}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "ours", Expression: fmt.Sprintf("%q in request.userInfo.groups", ours),
			}},
		}},
	}}, server, nil
}

// failing returns a handler that answers with a conflict, with an internal error, and not at all, in turn.
func failing() http.HandlerFunc {
	var count atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		code := int32(http.StatusConflict)
		switch count.Add(1) % 3 {
		case 0:
			<-r.Context().Done() // the apiserver gives up, or the server ends
			return
		case 1:
			code = http.StatusInternalServerError
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Result: &metav1.Status{Code: code, Message: "refused by a test"},
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}
}
