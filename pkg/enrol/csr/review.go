package csr

import (
	"context"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
)

const (
	// Audience is what the ServiceAccount token of a gateway must be made for, so that a token which somebody gave to
	// another service is of no use here.
	Audience = "fairlead.dev"
	// podNameExtra is where Kubernetes says which Pod a token is bound to.
	podNameExtra = "authentication.kubernetes.io/pod-name"
)

// Reviews implements enrolserver.Reviewer by TokenReview.
type Reviews struct {
	Client kubernetes.Interface
	User   string // of the gateways' Pods: system:serviceaccount:<namespace>:<name>
}

// ReviewGateway implements enrolserver.Reviewer: the token must be for us, of the gateways' user, and bound to the Pod that has
// the gateway's name. An error that wraps enrolserver.ErrDenied says that it is not.
func (r Reviews) ReviewGateway(ctx context.Context, token, gateway string) error {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}}}
	review, err := r.Client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("reviewing ServiceAccount token of %s: %w", gateway, err)
	}
	user := review.Status.User
	switch {
	// Without our audience in the answer the token was checked by something that knows no audiences.
	case !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, Audience):
		return fmt.Errorf("%w: the ServiceAccount token is not valid for audience %s", enrolserver.ErrDenied, Audience)
	case user.Username != r.User:
		return fmt.Errorf("%w: the ServiceAccount token is of %s, not of the gateways", enrolserver.ErrDenied, user.Username)
	case !slices.Equal(user.Extra[podNameExtra], authenticationv1.ExtraValue{gateway}):
		return fmt.Errorf("%w: the ServiceAccount token is not of Pod %s", enrolserver.ErrDenied, gateway)
	}
	return nil
}
