package proxy

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
)

const (
	// listTime bounds one list of Tunnels.
	listTime = 15 * time.Second
	// missInterval is the shortest time between two lists that unknown names cause.
	missInterval = 2 * time.Second
	// pageSize bounds one page of a list.
	pageSize = 500
)

// names are the names of the tunnels to which the proxy accepts connections. A name that was removed from its Tunnel
// stays in it: the gateways answer 404.
type names struct {
	reader    client.Reader
	namespace string // of the Tunnels; empty: all that the user may list
	fallback  string // the namespace to list if the user may not list all

	listing singleflight.Group
	fixed   bool // it is never listed
	mu      sync.Mutex
	known   map[string]bool
	read    time.Time
}

// has reports whether a name is one of a Tunnel. For an unknown name it lists the Tunnels again, but not at once.
func (n *names) has(ctx context.Context, name string) (bool, error) {
	n.mu.Lock()
	known, current := n.known[name], n.fixed || time.Since(n.read) < missInterval
	n.mu.Unlock()
	if known || current {
		return known, nil
	}
	if _, err := n.list(ctx); err != nil {
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known[name], nil
}

// only accepts these names and no other.
func (n *names) only(served []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fixed, n.known = true, map[string]bool{}
	for _, name := range served {
		n.known[name] = true
	}
}

// list reads the names of all Tunnels, and returns how many names there are.
func (n *names) list(ctx context.Context) (int, error) {
	// The list continues for other callers if this one leaves.
	found := n.listing.DoChan("tunnels", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTime)
		defer cancel()
		known, err := n.all(ctx, n.namespace)
		if apierrors.IsForbidden(err) && n.namespace == "" {
			known, err = n.all(ctx, n.fallback)
		}
		if err != nil {
			return nil, management.ExplainMissing(fmt.Errorf("listing Tunnels: %w", err))
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.known, n.read = known, time.Now()
		return len(known), nil
	})
	select {
	case result := <-found:
		if result.Err != nil {
			return 0, result.Err
		}
		return result.Val.(int), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (n *names) all(ctx context.Context, namespace string) (map[string]bool, error) {
	known := map[string]bool{}
	for next := ""; ; {
		var page v1alpha1.TunnelList
		err := n.reader.List(ctx, &page, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(next))
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			for _, name := range page.Items[i].Status.Names {
				known[name] = true
			}
		}
		if next = page.Continue; next == "" {
			return known, nil
		}
	}
}
