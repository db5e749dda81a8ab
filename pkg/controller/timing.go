package controller

import (
	"time"
)

const (
	// caLifetime is long, because replacing a CA reaches edges only as they renew.
	caLifetime = 10 * 365 * 24 * time.Hour
	// Bounds of caTiming.margin.
	minMargin, maxMargin = 3 * time.Second, 15 * time.Minute
	// maxSettle bounds caTiming.settle.
	maxSettle = 5 * time.Minute
)

// caTiming is how long the phases of a rotation last.
type caTiming struct {
	leaf    time.Duration // how long a leaf lives
	overlap time.Duration
	life    time.Duration // of a new CA
}

func (c Config) timing() caTiming {
	t := caTiming{leaf: c.LeafLifetime, overlap: c.CAOverlap, life: c.CALifetime}
	if t.life == 0 {
		t.life = caLifetime
	}
	return t
}

// margin is what a phase lasts longer than a leaf: until every xds-server has seen a change, and for leaves that were
// issued a moment before.
func (t caTiming) margin() time.Duration { return min(max(t.leaf/4, minMargin), maxMargin) }

// introduce is how long the next CA is in the bundle before it signs: then nobody has a valid leaf that came with an
// older bundle.
func (t caTiming) introduce() time.Duration { return t.leaf + t.margin() }

// move is how long an edge may have been away and still come back without a new token.
func (t caTiming) move() time.Duration { return max(t.overlap, t.leaf+t.margin()) }

// retire is how long the old CA stays in the bundle after it has signed for the last time.
func (t caTiming) retire() time.Duration { return t.leaf + t.margin() }

// total is what a whole rotation takes.
func (t caTiming) total() time.Duration { return t.introduce() + t.move() + t.retire() }

// settle is how long the signer has to be up before the next CA may sign: while it was away nobody could renew, and whoever
// should have done so comes within minutes.
func (t caTiming) settle() time.Duration { return min(t.leaf/2, maxSettle) }
