// Package csr has certificates signed by the controller: a request that was checked goes in, a leaf comes out, by way
// of a CertificateSigningRequest, so that the xds-server needs no CA key. It also asks Kubernetes whose ServiceAccount token
// it was shown. It knows neither who asks nor what the leaf is used for.
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

// maxWait is how long a signer may take. It usually takes milliseconds; whoever waits at the other end tries again.
const maxWait = 15 * time.Second

// Requests implements enrolserver.Issuer: it makes CertificateSigningRequests and waits until the controller has signed them.
// It leaves them there as a record, because it may delete none; kube-controller-manager removes those that were answered after
// an hour, and those that nobody answered after a day. So callers of whom there may be any number need a Breaker in front.
type Requests struct{ Client kubernetes.Interface }

// Issue implements enrolserver.Issuer. An error that wraps enrolserver.ErrDenied holds what the signer says; any other one means that
// there was no answer in time.
func (r Requests) Issue(ctx context.Context, request enrolserver.IssueRequest) (chainPEM []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	csr, err := newRequest(request)
	if err != nil {
		return nil, err
	}
	made, err := r.Client.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("making CertificateSigningRequest for %s: %w", request.Subject.Node, err)
	}
	chain, err := r.wait(ctx, made)
	if err != nil {
		return nil, fmt.Errorf("waiting for CertificateSigningRequest %s of %s: %w", made.Name, request.Subject.Node, err)
	}
	return chain, nil
}

// newRequest says for whom the leaf is in annotations, because the controller reads nothing of a CSR but its key. It asks for
// no lifetime: that is the controller's choice, and may be less than the 10 minutes that Kubernetes lets one ask for.
func newRequest(request enrolserver.IssueRequest) (*certificatesv1.CertificateSigningRequest, error) {
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	annotations := map[string]string{v1alpha1.RequestNodeAnnotation: request.Subject.Node}
	var signer string
	switch request.Subject.Role {
	case model.RoleEdge:
		signer, usages = v1alpha1.SignerEdge, append(usages, certificatesv1.UsageClientAuth)
		annotations[v1alpha1.RequestTunnelAnnotation] = request.Tunnel.String()
		annotations[v1alpha1.RequestTunnelIDAnnotation] = request.Subject.ID
		setUnlessEmpty(annotations, v1alpha1.RequestTokenAnnotation, request.TokenHash)
		setUnlessEmpty(annotations, v1alpha1.RequestHostAnnotation, request.Host)
	case model.RoleGateway:
		signer, usages = v1alpha1.SignerGateway, append(usages, certificatesv1.UsageClientAuth)
	case model.RoleControl:
		signer = v1alpha1.SignerControl
	default:
		return nil, fmt.Errorf("making CertificateSigningRequest: nobody signs for the role %q", request.Subject.Role)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fairlead-" + string(request.Subject.Role) + "-", Annotations: annotations},
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

// wait watches one request from the version that was made on, so that no answer is missed.
func (r Requests) wait(ctx context.Context, made *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	this := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", made.Name).String()
		return r.Client.CertificatesV1().CertificateSigningRequests().Watch(ctx, options)
	}}
	var chain []byte
	_, err := watchtools.Until(ctx, made.ResourceVersion, this, func(event watch.Event) (bool, error) {
		csr, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
		switch {
		case !ok:
			return false, apierrors.FromObject(event.Object) // the watch can't go on
		case event.Type == watch.Deleted:
			return false, errors.New("it was deleted")
		}
		chain = csr.Status.Certificate
		return len(chain) > 0, denial(csr)
	})
	return chain, err
}

// denial is the signer's no, nil if there is none.
func denial(csr *certificatesv1.CertificateSigningRequest) error {
	for _, c := range csr.Status.Conditions {
		no := c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
		if no && c.Status == corev1.ConditionTrue {
			return fmt.Errorf("%w: %s: %s", enrolserver.ErrDenied, c.Reason, c.Message)
		}
	}
	return nil
}
