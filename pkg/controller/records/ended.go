package records

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
)

const (
	// GraceTime is how long after the end of its certificate an edge may renew with its key.
	GraceTime = 90 * 24 * time.Hour
	// MaxEnded bounds the record at about 60 bytes per id, far below the 1 MiB of an object. If more tunnels have ended,
	// the ones whose certificates end first are dropped.
	MaxEnded = 10000
)

// forever is beyond the end of every certificate.
var forever = time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)

// EndedTunnels is the record of ended tunnels, whose edges are rejected for good. It is safe for concurrent use. Only
// the leading controller writes it, so its memory stays valid until Prune reads the record again.
type EndedTunnels struct {
	client    client.Client
	live      client.Reader
	namespace string
	now       func() time.Time

	writing sync.Mutex // held during each change, so that changes have an order

	mu      sync.Mutex        // guards the fields below, and is not held during calls to the apiserver
	known   map[string]string // the content of the ConfigMap; nil: not read yet
	waiting []*addition       // in the order of their calls of Add
}

// addition is a tunnel to record. EndedTunnels.writing guards done and err.
type addition struct {
	id, until string
	done      bool
	err       error
}

// NewEndedTunnels returns the record in a namespace. It is empty until the first write or Prune.
func NewEndedTunnels(to client.Client, live client.Reader, namespace string, now func() time.Time) *EndedTunnels {
	return &EndedTunnels{client: to, live: live, namespace: namespace, now: now}
}

// Add records that a tunnel has ended and until when certificates of its edges may be valid. One write records all
// tunnels that have ended since the previous write began, because each write contains the whole record.
func (e *EndedTunnels) Add(ctx context.Context, id string, until time.Time) error {
	own := &addition{id: id, until: until.UTC().Format(time.RFC3339)}
	e.mu.Lock()
	e.waiting = append(e.waiting, own)
	e.mu.Unlock()
	e.writing.Lock()
	defer e.writing.Unlock()
	if own.done {
		return own.err
	}
	e.mu.Lock()
	group := slices.Clone(e.waiting)
	e.mu.Unlock()
	err := e.change(ctx, func(ids map[string]string) {
		for _, a := range group {
			ids[a.id] = a.until
		}
		dropOldest(ids, MaxEnded)
	})
	if err != nil && ctx.Err() != nil {
		group = []*addition{own} // the others have contexts of their own
	}
	for _, a := range group {
		a.done, a.err = true, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = slices.DeleteFunc(e.waiting, func(a *addition) bool { return a.done })
	return err
}

// Revive removes a tunnel from the record if lives confirms that it has not ended. lives is called while nothing can be
// added, because a tunnel may end at the same time.
func (e *EndedTunnels) Revive(ctx context.Context, id string, lives func() (bool, error)) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	var failed error
	err := e.change(ctx, func(ids map[string]string) {
		if ok, err := lives(); err != nil {
			failed = err
		} else if ok {
			delete(ids, id)
		}
	})
	return errors.Join(failed, err)
}

// Has reports whether a tunnel is on record, from memory. It does not wait for a change. Before the first read it
// returns false; callers check again later.
func (e *EndedTunnels) Has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.known[id]
	return ok
}

// Prune reads the record again and removes expired entries. An entry that cannot be parsed stays: its tunnel has ended.
func (e *EndedTunnels) Prune(ctx context.Context) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	return e.change(ctx, func(ids map[string]string) {
		maps.DeleteFunc(ids, func(_, until string) bool {
			return e.now().After(endOf(until).Add(GraceTime))
		})
	})
}

// change reads the record, and writes it if something differs. A concurrent write is a conflict. The caller holds
// e.writing.
func (e *EndedTunnels) change(ctx context.Context, do func(map[string]string)) error {
	key := client.ObjectKey{Namespace: e.namespace, Name: v1alpha1.EndedTunnelsConfigMapName}
	have, err := objects.Get(ctx, e.live, key, &corev1.ConfigMap{})
	if err != nil {
		return objects.Wrap("reading record of ended tunnels", err)
	}
	want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if have != nil {
		want = have.DeepCopy()
	}
	if want.Data == nil {
		want.Data = map[string]string{}
	}
	do(want.Data)
	switch {
	case have == nil && len(want.Data) == 0:
	case have == nil:
		err = objects.Wrap("creating record of ended tunnels", e.client.Create(ctx, want))
	case !maps.Equal(have.Data, want.Data):
		err = objects.Wrap("updating record of ended tunnels", e.client.Patch(ctx, want, objects.LockedPatch(have)))
	}
	if err == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.known = maps.Clone(want.Data)
	}
	return err
}

// endOf returns until when certificates of a tunnel may be valid. An entry that cannot be parsed never ends:
// xds-servers deny the tunnel while it is on record.
func endOf(until string) time.Time {
	end, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return forever
	}
	return end
}

// dropOldest removes the tunnels that ended first until at most limit remain.
func dropOldest(ids map[string]string, limit int) {
	extra := len(ids) - limit
	if extra <= 0 {
		return
	}
	ends := make(map[string]time.Time, len(ids)) // each is parsed once
	for id, until := range ids {
		ends[id] = endOf(until)
	}
	byEnd := slices.SortedFunc(
		maps.Keys(ids), func(a, b string) int { return cmp.Or(ends[a].Compare(ends[b]), cmp.Compare(a, b)) },
	)
	for _, id := range byEnd[:extra] {
		delete(ids, id)
	}
}

// ValidUntil returns until when certificates of a Tunnel's edges may be valid.
func ValidUntil(c config.Config, tunnel *v1alpha1.Tunnel, now time.Time) time.Time {
	until := now.Add(c.LeafLifetime)
	for _, edge := range tunnel.Status.Edges { // earlier leaves may have had a longer lifetime
		if edge.CertificateNotAfter.After(until) {
			until = edge.CertificateNotAfter.Time
		}
	}
	return until.Add(certs.ClockSkew)
}
