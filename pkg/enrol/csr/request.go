// Package csr gets certificates signed by the controller. The input is a checked request; the output is a leaf, by way
// of a CertificateSigningRequest, so that the xds-server needs no CA key. The package also reviews ServiceAccount
// tokens with Kubernetes. It knows neither the client nor the use of the leaf.
package csr

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/fairlead/fairlead/api/v1alpha1"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxWait bounds how long a signer may take. It usually takes milliseconds; the waiting client retries.
const maxWait = 15 * time.Second

// Requests implements enrolserver.Issuer: it creates CertificateSigningRequests and waits until the controller has
// signed them. It leaves them as a record, because it has no permission to delete them. kube-controller-manager
// deletes answered ones after an hour, and unanswered ones after a day. Callers that can be arbitrarily many need a
// Breaker in front.
type Requests struct{ Client kubernetes.Interface }

// Issue implements enrolserver.Issuer. An error that wraps enrolserver.ErrDenied contains the signer's message. Any
// other error means that there was no answer in time.
func (r Requests) Issue(ctx context.Context, request enrolserver.IssueRequest) (chainPEM []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	csr, err := newRequest(request)
	if err != nil {
		return nil, err
	}
	made, err := r.Client.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating CertificateSigningRequest for %s: %w", request.Subject.Node, err)
	}
	chain, err := r.wait(ctx, made)
	if err != nil {
		return nil, fmt.Errorf("waiting for CertificateSigningRequest %s of %s: %w", made.Name, request.Subject.Node, err)
	}
	return chain, nil
}

// newRequest puts the subject into annotations, because the controller reads only the key of a CSR. It requests no
// lifetime: the controller decides it, and it may be less than the 10 minutes that are the minimum of the field in
// Kubernetes.
func newRequest(request enrolserver.IssueRequest) (*certificatesv1.CertificateSigningRequest, error) {
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature}
	annotations := map[string]string{v1alpha1.RequestNodeAnnotation: request.Subject.Node}
	signer := ""
	switch request.Subject.Role {
	case model.RoleEdge:
		signer = v1alpha1.SignerEdge
		usages = append(usages, certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth)
	case model.RoleEgress: // no peer ever connects to it
		signer, usages = v1alpha1.SignerEgress, append(usages, certificatesv1.UsageClientAuth)
	case model.RoleGateway:
		signer = v1alpha1.SignerGateway
		usages = append(usages, certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth)
	case model.RoleControl:
		signer, usages = v1alpha1.SignerControl, append(usages, certificatesv1.UsageServerAuth)
	default:
		return nil, fmt.Errorf("creating CertificateSigningRequest: the role %q has no signer", request.Subject.Role)
	}
	if request.Subject.Role.Enrols() {
		annotations[v1alpha1.RequestTunnelAnnotation] = request.Tunnel.String()
		annotations[v1alpha1.RequestTunnelIDAnnotation] = request.Subject.ID
		setUnlessEmpty(annotations, v1alpha1.RequestTokenAnnotation, request.TokenHash)
		setUnlessEmpty(annotations, v1alpha1.RequestPodTokenAnnotation, request.PodToken)
		setUnlessEmpty(annotations, v1alpha1.RequestHostAnnotation, request.Host)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "fairlead-" + string(request.Subject.Role) + "-",
			Annotations:  annotations,
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request.CSR}),
			SignerName: signer,
			Usages:     usages,
		},
	}, nil
}

func setUnlessEmpty(m map[string]string, key, value string) {
	if value != "" {
		m[key] = value
	}
}

// wait watches one request from the version at its creation, so that it misses no answer.
func (r Requests) wait(ctx context.Context, made *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	this := &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = fields.OneTermEqualSelector("metadata.name", made.Name).String()
			return r.Client.CertificatesV1().CertificateSigningRequests().Watch(ctx, options)
		},
	}
	var chain []byte
	_, err := watchtools.Until(ctx, made.ResourceVersion, this, func(event watch.Event) (bool, error) {
		csr, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
		switch {
		case !ok:
			return false, apierrors.FromObject(event.Object) // the watch cannot continue
		case event.Type == watch.Deleted:
			return false, errors.New("it was deleted")
		}
		chain = csr.Status.Certificate
		return len(chain) > 0, denial(csr)
	})
	return chain, err
}

// denial returns the signer's denial as an error, or nil if there is none.
func denial(csr *certificatesv1.CertificateSigningRequest) error {
	for _, c := range csr.Status.Conditions {
		no := c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
		if no && c.Status == corev1.ConditionTrue {
			return fmt.Errorf("%w: %s: %s", enrolserver.ErrDenied, c.Reason, c.Message)
		}
	}
	return nil
}
