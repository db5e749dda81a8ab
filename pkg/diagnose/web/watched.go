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

// lookTime bounds one look at all hops of a Cluster.
const lookTime = 2 * time.Minute

// errTooMany says that the pages of too many Clusters are open at the same time.
var errTooMany = fmt.Errorf("the pages of %d Clusters are open at this server already, which is the limit: close the page of another Cluster, "+
	"or run fairlead check", maxWatched)

// kinds of events about a Cluster.
const (
	eventObjects = "cluster" // what its objects say
	eventHops    = "hops"    // what a look at its hops has found
)

// watched is a Cluster whose page is open. All who have it open share one look at it.
type watched struct {
	readers int // under Page.mu
	cancel  context.CancelFunc
	touched chan struct{} // holds one: its objects have changed

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

// get returns the event of a kind if it is newer than what a reader had.
func (c *watched) get(kind string, had int) (json.RawMessage, int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[kind], c.serial[kind], c.serial[kind] != had
}

// next is closed with the next event.
func (c *watched) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.news
}

// touch tells whoever looks at a Cluster, if somebody does, that its objects have changed.
func (p *Page) touch(key model.Key) {
	p.mu.Lock()
	c := p.watched[key]
	p.mu.Unlock()
	if c == nil {
		return
	}
	select {
	case c.touched <- struct{}{}:
	default:
	}
}

// attend has a Cluster looked at until the last reader leaves.
func (p *Page) attend(key model.Key) (c *watched, leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c = p.watched[key]
	if c == nil {
		if len(p.watched) >= maxWatched {
			return nil, nil, errTooMany
		}
		c = &watched{touched: make(chan struct{}, 1), events: map[string][]byte{}, serial: map[string]int{}, news: make(chan struct{})}
		var ctx context.Context
		ctx, c.cancel = context.WithCancel(context.Background())
		p.watched[key] = c
		p.looking.Go(func() { p.attending(ctx, key, c) })
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

// attending keeps the events of a Cluster new until ctx ends.
func (p *Page) attending(ctx context.Context, key model.Key, c *watched) {
	var parts errgroup.Group
	parts.Go(func() error {
		for ctx.Err() == nil {
			if data, err := p.objectsOf(ctx, key); err == nil {
				c.set(eventObjects, data)
			} else if ctx.Err() == nil {
				p.Log.Warn("cannot read the objects of an open page", "cluster", key.String(), "error", err)
			}
			select {
			case <-ctx.Done():
			case <-c.touched:
				wait(ctx, p.Timing.Gather)
			case <-time.After(p.Timing.Check): // what could not be read is read again
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

// checkOnce looks at all hops of a Cluster.
func (p *Page) checkOnce(ctx context.Context, key model.Key, c *watched) {
	defer p.survive(key)
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	report := p.Check(ctx, client.ObjectKey(key))
	if data, err := json.Marshal(report); err == nil && ctx.Err() == nil {
		c.set(eventHops, data)
	}
}
