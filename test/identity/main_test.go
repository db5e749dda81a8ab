// Package identity proves how edges come to be trusted, stay so through every rotation and restart, and stop at once when
// they are told to: with Fairlead's programs, real Envoys and real apiservers in network namespaces. The names of its tests
// are the promises.
//
// Three tests run at the same time, each in an installation of its own: TestRotations with certificates that live for seconds,
// under load; TestDoors with everything that somebody may try at a door; TestOutage without a control plane for five minutes.
// The first has the machine alone for some minutes: see machine. With -short only a part of TestDoors runs.
package identity

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/world"
)

// What every test here says, in short.
var (
	measured   = promise.Measured
	eventually = promise.Eventually
	must       = promise.Must
)

const (
	patience = promise.Patience
	// poll is how often a test looks itself.
	poll = 50 * time.Millisecond
)

var proof = promise.Proof{Name: "verify identity", Parallel: 16}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }

const (
	domain    = world.Domain
	namespace = world.Namespace
)

// starting is held by who starts an installation.
var starting sync.Mutex

// newLab builds an installation that ends with the test.
func newLab(t *testing.T, options lab.Options) *lab.Lab {
	t.Helper()
	proof.Need(t)
	starting.Lock() // one after the other: what runs in one of them should not wait for the start of another
	defer starting.Unlock()
	l, err := lab.New(t.Context(), options)
	return proof.Start(t, l, err)
}

// newWorld is newLab with stand-ins for apiservers. Nothing starts in it while TestRotations has the machine.
func newWorld(t *testing.T, options lab.Options) *world.World {
	t.Helper()
	options.TunnelDomain = string(domain)
	w := world.New(t, newLab(t, options))
	w.Before = func(t *testing.T) { t.Helper(); hold(t, 1)() }
	return w
}
