package source

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/model"
)

// listedCache is a cache without objects that records the options of lists.
type listedCache struct {
	cache.Cache
	lists []client.ListOptions
}

// List implements client.Reader.
func (c *listedCache) List(_ context.Context, _ client.ObjectList, options ...client.ListOption) error {
	all := client.ListOptions{}
	all.ApplyOptions(options)
	c.lists = append(c.lists, all)
	return nil
}

// replaced is a Publisher that accepts the first publication.
type replaced struct{ Publisher }

// Replace implements Publisher.
func (replaced) Replace([]model.WorkloadCluster) {}

// TestListsOfAllTunnelsCopyNone: an xds-server lists all Tunnels when it starts, and each second while it waits for
// records.
func TestListsOfAllTunnelsCopyNone(t *testing.T) {
	objects := &listedCache{}
	k := &Kube{
		KubeConfig: KubeConfig{Publisher: replaced{}, Log: slog.New(slog.DiscardHandler), Now: time.Now}, objects: objects,
	}
	if _, _, err := k.incomplete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := k.replace(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(objects.lists); n != 2 {
		t.Errorf("%d lists, want 2", n)
	}
	for _, options := range objects.lists {
		if options.UnsafeDisableDeepCopy == nil || !*options.UnsafeDisableDeepCopy {
			t.Errorf("all Tunnels are copied: %+v", options)
		}
	}
}
