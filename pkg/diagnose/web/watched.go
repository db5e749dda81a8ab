package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/model"
)

// checkTimeout bounds one check of all hops of a Cluster.
const checkTimeout = 2 * time.Minute

// errTooMany means that too many Clusters have open pages.
var errTooMany = fmt.Errorf(
	"the pages of %d Clusters are open at this server already, which is the limit: close the page of another Cluster, "+
		"or run fairlead check",
	maxWatched,
)

// kinds of events about a Cluster.
const (
	eventObjects = "cluster" // the content of its objects
	eventHops    = "hops"    // the results of a check of its hops
)

// watched is a Cluster with an open page. All readers of the page share its checks.
type watched struct {
	readers int // under Page.mu
	cancel  context.CancelFunc
	changed chan struct{} // capacity 1: its objects have changed

	mu     sync.Mutex
	events map[string][]byte // the newest of each kind
	serial map[string]int    // how many there were
	news   chan struct{}     // closed with the next
}

// set replaces the event of a kind.
func (c *watched) set(kind string, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes.Equal(c.events[kind], data) {
		return
	}
	c.events[kind] = data
	c.serial[kind]++
	close(c.news)
	c.news = make(chan struct{})
}

// get returns the event of a kind if it is newer than the reader's last one.
func (c *watched) get(kind string, had int) (json.RawMessage, int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[kind], c.serial[kind], c.serial[kind] != had
}

// next returns a channel that is closed with the next event.
func (c *watched) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.news
}

// notify signals a change of a Cluster's objects if its page is open.
func (p *Page) notify(key model.Key) {
	p.mu.Lock()
	c := p.watched[key]
	p.mu.Unlock()
	if c == nil {
		return
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// attend checks a Cluster until the last reader leaves.
func (p *Page) attend(key model.Key) (c *watched, leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c = p.watched[key]
	if c == nil {
		if len(p.watched) >= maxWatched {
			return nil, nil, errTooMany
		}
		c = &watched{
			changed: make(chan struct{}, 1),
			events:  map[string][]byte{},
			serial:  map[string]int{},
			news:    make(chan struct{}),
		}
		var ctx context.Context
		ctx, c.cancel = context.WithCancel(context.Background())
		p.watched[key] = c
		p.reviews.Go(func() { p.attending(ctx, key, c) })
	}
	c.readers++
	return c, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if c.readers--; c.readers == 0 {
			c.cancel()
			delete(p.watched, key)
		}
	}, nil
}

// attending updates the events of a Cluster until ctx ends.
func (p *Page) attending(ctx context.Context, key model.Key, c *watched) {
	var parts errgroup.Group
	parts.Go(func() error {
		for ctx.Err() == nil {
			p.readOnce(ctx, key, c)
			select {
			case <-ctx.Done():
			case <-c.changed:
				wait(ctx, p.Timing.Gather)
			case <-time.After(p.Timing.Check): // retry a failed read
			}
		}
		return nil
	})
	parts.Go(func() error {
		for p.Check != nil && ctx.Err() == nil {
			p.checkOnce(ctx, key, c)
			wait(ctx, p.Timing.Check)
		}
		return nil
	})
	_ = parts.Wait()
}

// readOnce reads the objects of a Cluster. Like update, it recovers from panics.
func (p *Page) readOnce(ctx context.Context, key model.Key, c *watched) {
	defer p.survive(key)
	data, err := p.objectsOf(ctx, key)
	switch {
	case err == nil:
		c.set(eventObjects, data)
	case ctx.Err() == nil:
		p.Log.Warn("cannot read the objects of an open page", "cluster", key.String(), "error", err)
	}
}

// checkOnce checks all hops of a Cluster.
func (p *Page) checkOnce(ctx context.Context, key model.Key, c *watched) {
	defer p.survive(key)
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	report := p.Check(ctx, client.ObjectKey(key))
	if data, err := json.Marshal(report); err == nil && ctx.Err() == nil {
		c.set(eventHops, data)
	}
}
