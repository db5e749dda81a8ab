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

// Verdict is what a review of a reader comes to.
type Decision int

// Verdicts. Forbidden: the management cluster knows the reader, who may not read. TooMany: the reader's address has sent too many
// tokens that were not known yet.
const (
	Unknown Decision = iota
	Forbidden
	Allowed
	TooMany
)

// Reviewer decides on a reader by a bearer token. from is where the request came from, host:port.
type Reviewer interface {
	Review(ctx context.Context, token, from string) (Decision, error)
}

const (
	// For a minute a token that was good is good, as for an apiserver's own webhooks; one that was not is asked about again soon,
	// so that a permission that was just given holds.
	keepAllowed, keepRefused = time.Minute, 5 * time.Second
	maxKept                  = 1024
	reviewTime               = 10 * time.Second
)

// newTokens is how many tokens an address may send that are not known yet: each costs the apiserver two requests.
var newTokens = limit.Rate{Every: 500 * time.Millisecond, Burst: 20}

// Reviews asks the management cluster, as its own aggregated apiservers do: by TokenReview who a reader is, by
// SubjectAccessReview whether that user may list Tunnels in all namespaces. It keeps the answers for a while, under a hash.
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

// NewReviews returns one that asks by a client.
func NewReviews(client kubernetes.Interface) *Reviews {
	return &Reviews{client: client, now: time.Now, rates: limit.NewRates(maxKept), kept: map[[sha256.Size]byte]*list.Element{}, recent: list.New()}
}

// Review implements Reviewer. An error says that the management cluster could not be asked.
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
	review, err := r.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
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
	access, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: v1alpha1.GroupVersion.Group, Resource: "tunnels"},
	}}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return Unknown, fmt.Errorf("reviewing access of %s: %w", user.Username, err)
	case !access.Status.Allowed:
		return Forbidden, nil
	}
	return Allowed, nil
}

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
