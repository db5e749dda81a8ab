package web

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/model"
)

// Fill creates all rows from objects of a test, as Watch does from objects that it reads.
func (p *Page) Fill(ctx context.Context, objects client.Reader) {
	p.renew(ctx, objects)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read = true
}

// Changed reports that objects of a Cluster have changed.
func (p *Page) Changed(ctx context.Context, objects client.Reader, key model.Key) {
	p.update(ctx, objects, key)
	p.notify(key)
}

// SetLog bounds how many changes are stored.
func (p *Page) SetLog(n int) { p.fleet.log = n }

// Watched returns how many Clusters are being checked.
func (p *Page) Watched() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.watched)
}
