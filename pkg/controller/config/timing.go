package config

import (
	"time"
)

const (
	// DefaultCALifetime is long, because a replaced CA reaches edges only when they renew.
	DefaultCALifetime = 10 * 365 * 24 * time.Hour
	// Bounds of Timing.margin.
	minMargin, maxMargin = 3 * time.Second, 15 * time.Minute
	// maxSignerUptime bounds Timing.SignerUptime.
	maxSignerUptime = 5 * time.Minute
)

// Timing derives the durations of the phases of a rotation.
type Timing struct {
	Leaf    time.Duration // lifetime of a leaf
	Overlap time.Duration
	Life    time.Duration // lifetime of a new CA
	// NoCrossSign is Config.NoCrossSign.
	NoCrossSign bool
}

// Timing returns the durations of the phases of a rotation with these settings.
func (c Config) Timing() Timing {
	t := Timing{Leaf: c.LeafLifetime, Overlap: c.CAOverlap, Life: c.CALifetime, NoCrossSign: c.NoCrossSign}
	if t.Life == 0 {
		t.Life = DefaultCALifetime
	}
	return t
}

// margin is how much longer a phase lasts than a leaf. It covers the time until every xds-server has received a change,
// and leaves that were issued a moment before.
func (t Timing) margin() time.Duration { return min(max(t.Leaf/4, minMargin), maxMargin) }

// Introduce returns how long the next CA is in the bundle before it signs. After that, no valid leaf is left that came
// with an older bundle.
func (t Timing) Introduce() time.Duration { return t.Leaf + t.margin() }

// Move returns how long an edge may be away and still come back without a new token.
func (t Timing) Move() time.Duration { return max(t.Overlap, t.Leaf+t.margin()) }

// Retire returns how long the old CA stays in the bundle after its last signature.
func (t Timing) Retire() time.Duration { return t.Leaf + t.margin() }

// Total returns the duration of a whole rotation.
func (t Timing) Total() time.Duration { return t.Introduce() + t.Move() + t.Retire() }

// SignerUptime returns how long the signer must be up before the next CA may sign. While the signer was down, no leaf
// could be renewed, and edges whose renewal is due retry within minutes.
func (t Timing) SignerUptime() time.Duration { return min(t.Leaf/2, maxSignerUptime) }
