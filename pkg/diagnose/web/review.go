package web

import (
	"container/list"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/limit"
)

// Decision is the result of the review of a reader.
type Decision int

// The decisions. Forbidden: the management cluster has authenticated the reader, but does not authorize it. TooMany:
// the reader's address has sent too many unknown tokens.
const (
	Unknown Decision = iota
	Forbidden
	Allowed
	TooMany
)

// Reviewer authorizes a reader by a bearer token. from is host:port of the request's origin.
type Reviewer interface {
	Review(ctx context.Context, token, from string) (Decision, error)
}

const (
	// An accepted token stays valid for a minute, as with an apiserver's own webhooks. A rejected one is reviewed again
	// soon, so that a new permission takes effect.
	keepAllowed, keepRefused = time.Minute, 5 * time.Second
	maxKept                  = 1024
	reviewTime               = 10 * time.Second
)

// newTokens is how many unknown tokens an address may send: each costs the apiserver two requests.
var newTokens = limit.Rate{Every: 500 * time.Millisecond, Burst: 20}

// Reviews queries the management cluster like its aggregated apiservers do: a TokenReview authenticates a reader, and a
// SubjectAccessReview for each kind checks whether that user may list Tunnels and RemoteNetworks in all namespaces. It
// caches the answers for a while, by a hash of the token.
type Reviews struct {
	client kubernetes.Interface
	now    func() time.Time
	rates  *limit.Rates

	mu     sync.Mutex
	kept   map[[sha256.Size]byte]*list.Element
	recent *list.List // of *answer, the newest in front
}

type answer struct {
	hash    [sha256.Size]byte
	verdict Decision
	until   time.Time
}

// NewReviews returns Reviews that uses a client.
func NewReviews(client kubernetes.Interface) *Reviews {
	return &Reviews{
		client: client,
		now:    time.Now,
		rates:  limit.NewRates(maxKept),
		kept:   map[[sha256.Size]byte]*list.Element{},
		recent: list.New(),
	}
}

// Review implements Reviewer. An error means that the management cluster did not answer.
func (r *Reviews) Review(ctx context.Context, token, from string) (Decision, error) {
	hash := sha256.Sum256([]byte(token))
	if verdict, ok := r.known(hash); ok {
		return verdict, nil
	}
	host, _, err := net.SplitHostPort(from)
	if err != nil {
		host = from
	}
	if r.rates.Take(host, newTokens) > 0 {
		return TooMany, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	verdict, err := r.ask(ctx, token)
	if err != nil {
		return Unknown, err
	}
	r.keep(hash, verdict)
	return verdict, nil
}

func (r *Reviews) ask(ctx context.Context, token string) (Decision, error) {
	review, err := r.client.AuthenticationV1().
		TokenReviews().
		Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}},
			metav1.CreateOptions{})
	if err != nil {
		return Unknown, fmt.Errorf("reviewing token: %w", err)
	}
	if !review.Status.Authenticated {
		return Unknown, nil
	}
	user := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	spec := authorizationv1.SubjectAccessReviewSpec{User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra}
	for _, resource := range shown {
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Verb: "list", Group: v1alpha1.GroupVersion.Group, Resource: resource,
		}
		access, err := r.client.AuthorizationV1().SubjectAccessReviews().
			Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		switch {
		case err != nil:
			return Unknown, fmt.Errorf("reviewing access of %s: %w", user.Username, err)
		case !access.Status.Allowed:
			return Forbidden, nil
		}
	}
	return Allowed, nil
}

// shown are the kinds that the page shows, and that its readers must be allowed to list.
var shown = []string{"tunnels", "remotenetworks"}

func (r *Reviews) known(hash [sha256.Size]byte) (Decision, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.kept[hash]
	if e == nil || !r.now().Before(e.Value.(*answer).until) {
		return Unknown, false
	}
	r.recent.MoveToFront(e)
	return e.Value.(*answer).verdict, true
}

func (r *Reviews) keep(hash [sha256.Size]byte, verdict Decision) {
	until := r.now().Add(keepRefused)
	if verdict == Allowed {
		until = r.now().Add(keepAllowed)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.kept[hash]; e != nil {
		r.recent.Remove(e)
	}
	r.kept[hash] = r.recent.PushFront(&answer{hash: hash, verdict: verdict, until: until})
	if r.recent.Len() > maxKept {
		delete(r.kept, r.recent.Remove(r.recent.Back()).(*answer).hash)
	}
}
