package config

import (
	"time"
)

const (
	// DefaultCALifetime is long, because replacing a CA reaches edges only as they renew.
	DefaultCALifetime = 10 * 365 * 24 * time.Hour
	// Bounds of Timing.margin.
	minMargin, maxMargin = 3 * time.Second, 15 * time.Minute
	// maxSettle bounds Timing.settle.
	maxSettle = 5 * time.Minute
)

// Timing is how long the phases of a rotation last.
type Timing struct {
	Leaf    time.Duration // how long a leaf lives
	Overlap time.Duration
	Life    time.Duration // of a new CA
}

// Timing returns how long the phases of a rotation last with these settings.
func (c Config) Timing() Timing {
	t := Timing{Leaf: c.LeafLifetime, Overlap: c.CAOverlap, Life: c.CALifetime}
	if t.Life == 0 {
		t.Life = DefaultCALifetime
	}
	return t
}

// margin is what a phase lasts longer than a leaf: until every xds-server has seen a change, and for leaves that were
// issued a moment before.
func (t Timing) margin() time.Duration { return min(max(t.Leaf/4, minMargin), maxMargin) }

// Introduce is how long the next CA is in the bundle before it signs: then no valid leaf is left that came with an
// older bundle.
func (t Timing) Introduce() time.Duration { return t.Leaf + t.margin() }

// Move is how long an edge may have been away and still come back without a new token.
func (t Timing) Move() time.Duration { return max(t.Overlap, t.Leaf+t.margin()) }

// Retire is how long the old CA stays in the bundle after it has signed for the last time.
func (t Timing) Retire() time.Duration { return t.Leaf + t.margin() }

// Total is what a whole rotation takes.
func (t Timing) Total() time.Duration { return t.Introduce() + t.Move() + t.Retire() }

// Settle is how long the signer has to be up before the next CA may sign: while it was away no leaf could be renewed,
// and edges whose renewal is due retry within minutes.
func (t Timing) Settle() time.Duration { return min(t.Leaf/2, maxSettle) }
