// Package identity proves how edges become trusted, stay trusted through every rotation and restart, and lose access at
// once when they are revoked. Fairlead's programs, real Envoys and real apiservers run in network namespaces. The names
// of its tests are the promises.
//
// Three tests run at the same time, each in its own installation: TestRotationsInterruptNoRequest has certificates that
// live for seconds, under load; TestOnlyValidIdentitiesGetAccess tries every kind of access;
// TestEdgesServeWithoutTheControlPlane has no control plane for five minutes. The first has the machine alone for some
// minutes: see machine. With -short only a part of TestOnlyValidIdentitiesGetAccess runs.
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

// Short names for the functions of package promise.
var (
	measured   = promise.Measured
	eventually = promise.Eventually
	must       = promise.Must
)

const (
	patience = promise.Patience
	// poll is the interval at which a test checks a condition itself.
	poll = 50 * time.Millisecond
)

var proof = promise.Proof{Name: "verify identity", Parallel: 16}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }

const (
	domain    = world.Domain
	namespace = world.Namespace
)

// starting is held while an installation starts.
var starting sync.Mutex

// newLab builds an installation that ends with the test.
func newLab(t *testing.T, options lab.Options) *lab.Lab {
	t.Helper()
	proof.Need(t)
	starting.Lock() // one after the other, so that a running test does not wait for the start of another installation
	defer starting.Unlock()
	l, err := lab.New(t.Context(), options)
	return proof.Start(t, l, err)
}

// newWorld is newLab with stand-ins for apiservers. It starts nothing while TestRotationsInterruptNoRequest holds the
// machine.
func newWorld(t *testing.T, options lab.Options) *world.World {
	t.Helper()
	options.TunnelDomain = string(domain)
	w := world.New(t, newLab(t, options))
	w.Before = func(t *testing.T) { t.Helper(); hold(t, 1)() }
	return w
}
