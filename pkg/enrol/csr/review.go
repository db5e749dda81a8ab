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
	// Audience is the required audience of the ServiceAccount token of a gateway, so that a token for another service
	// is rejected here.
	Audience = "fairlead.dev"
	// podNameExtra is the key under which Kubernetes returns the Pod that a token is bound to.
	podNameExtra = "authentication.kubernetes.io/pod-name"
)

// Reviews implements enrolserver.Reviewer by TokenReview.
type Reviews struct {
	Client kubernetes.Interface
	User   string // of the gateways' Pods: system:serviceaccount:<namespace>:<name>
}

// ReviewGateway implements enrolserver.Reviewer: the token must have our audience, belong to the gateways' user, and
// be bound to the Pod with the gateway's name. Otherwise the error wraps enrolserver.ErrDenied. Any other error means
// that the token could not be reviewed.
func (r Reviews) ReviewGateway(ctx context.Context, token, gateway string) error {
	review := &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
	}
	review, err := r.Client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("reviewing ServiceAccount token of %s: %w", gateway, err)
	}
	user := review.Status.User
	switch {
	// Without our audience in the answer, the authenticator that checked the token does not support audiences.
	case !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, Audience):
		return fmt.Errorf("%w: the ServiceAccount token is not valid for audience %s", enrolserver.ErrDenied, Audience)
	case user.Username != r.User:
		return fmt.Errorf(
			"%w: the ServiceAccount token belongs to %s, not to the gateways", enrolserver.ErrDenied, user.Username,
		)
	case !slices.Equal(user.Extra[podNameExtra], authenticationv1.ExtraValue{gateway}):
		return fmt.Errorf("%w: the ServiceAccount token does not belong to Pod %s", enrolserver.ErrDenied, gateway)
	}
	return nil
}
