package agent

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

// withinBound is how long a revoked edge may keep its tunnels.
const withinBound = 5 * time.Second

// longStream is longer than withinBound.
const longStream = 12 * time.Second

// dropNetAdmin executes this program again without the capability NET_ADMIN, as in a container that may not have it.
// It returns if the program does not have it.
func dropNetAdmin() error {
	if sockets.Permitted() != nil {
		return nil
	}
	runtime.LockOSThread() // the bounding set belongs to the thread that executes the program
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_ADMIN, 0, 0, 0); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// unprivileged returns the place of a gateway without NET_ADMIN.
func unprivileged(c *control, setting bool) *place {
	c.t.Helper()
	p := newGatewayPlace(c)
	p.child.DropNetAdmin, p.child.WithoutNetAdmin = true, setting
	return p
}

func TestAGatewayWithoutNetAdminAndWithoutTheSettingDoesNotStart(t *testing.T) {
	c := newWorld(t)
	gateway := unprivileged(c, false)
	c.serve()
	agent := gateway.agent()
	select {
	case <-agent.done:
	case <-time.After(envoytest.Patience):
		t.Fatal("the agent runs")
	}
	for _, want := range []string{"needs CAP_NET_ADMIN", "--net-admin=false"} {
		if log := gateway.read(gateway.log); !strings.Contains(log, want) {
			t.Errorf("the log does not have %q: %s", want, log)
		}
	}
	if pid, err := gateway.admin().PID(); err == nil {
		t.Errorf("Envoy %d runs", pid)
	}
}

// TestARevocationReplacesEnvoyWithoutNetAdmin revokes two edges, one shortly after the other, and then one without a
// tunnel.
func TestARevocationReplacesEnvoyWithoutNetAdmin(t *testing.T) {
	c := newWorld(t)
	first, second, kept := newAPIServer(c, edgeSubject.ID, "c1"), model.NewID(), model.NewID()
	tokenOfSecond, tokenOfKept := c.tunnel("c2", second, first.Endpoint), c.tunnel("c3", kept, first.Endpoint)
	toSecond, toKept := newAPIServer(c, second, "c2"), newAPIServer(c, kept, "c3")
	gateway, edge, other := unprivileged(c, true), newEdge(c), newPlace(c, func(*child, string) {})
	edge.add(second, tokenOfSecond)
	other.add(kept, tokenOfKept)
	c.serve()
	gateway.agent()
	edge.agent()
	other.agent()
	for _, a := range []*apiserver{first, toSecond, toKept} {
		c.works(a)
	}
	pid := gateway.ready()
	nodes := edge.state("both are there", func(s state) error {
		if len(s.Memberships) != 2 || s.Memberships[0].Node == "" || s.Memberships[1].Node == "" {
			return errors.New("they are not")
		}
		return nil
	}).Memberships
	open := []func() error{c.stream(first, longStream), c.stream(toSecond, longStream)}
	c.set(func() { clear(c.tokens) }) // no edge comes back with another name

	began := time.Now()
	for _, m := range nodes {
		c.revoke(m.TunnelID, m.Node)
		pass(t, 300*time.Millisecond)
	}
	for _, wait := range open {
		if err := wait(); err == nil {
			t.Error("a stream in a tunnel of a revoked edge came to its end")
		}
	}
	took := time.Since(began)
	t.Logf("the tunnels were closed after %s", took)
	if took > withinBound {
		t.Errorf("the tunnels were closed after %s", took)
	}
	now := gateway.ready(pid)
	c.works(toKept)
	gateway.logged("Envoy is replaced to close connections", 1)
	gateway.state("it is reported", func(s state) error {
		switch m := s.Memberships[0]; {
		case s.Tunnels == nil || s.Tunnels.Cut < 4 || s.Tunnels.Replaced != 1 || s.Tunnels.CutFails != 0:
			return errors.New("the tunnels are not counted")
		case !strings.Contains(m.LastError, "without NET_ADMIN"):
			return errors.New("the reason is missing")
		}
		return nil
	})

	c.revoke(kept, "edge-without-a-tunnel")
	pass(t, withinBound)
	if again, err := gateway.admin().PID(); err != nil || again != now {
		t.Errorf("Envoy is %d and was %d: %v", again, now, err)
	}
	if err := c.once(t.Context(), toKept); err != nil {
		t.Error(err)
	}
	for _, a := range []*apiserver{first, toSecond} {
		if c.once(t.Context(), a) == nil {
			t.Errorf("a request goes to %s", a.name)
		}
	}
}

// TestARevocationEndsADrainWithoutNetAdmin: open connections of others must not keep those of a revoked edge open.
func TestARevocationEndsADrainWithoutNetAdmin(t *testing.T) {
	c := newWorld(t)
	a := newAPIServer(c, edgeSubject.ID, "c1")
	gateway, edge := unprivileged(c, true), newEdge(c)
	gateway.child.Drain = time.Minute
	c.serve()
	agent := gateway.agent()
	edge.agent()
	c.works(a)
	node := edge.state("it has a name", func(s state) error {
		if s.Memberships[0].Node == "" {
			return errors.New("it has none")
		}
		return nil
	}).Memberships[0].Node
	wait := c.stream(a, longStream)
	gateway.ready()
	if err := agent.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	gateway.logged("stopping Envoy", 1)
	began := time.Now()
	c.revoke(edgeSubject.ID, node)
	if err := wait(); err == nil {
		t.Error("the stream came to its end")
	}
	if took := time.Since(began); took > withinBound {
		t.Errorf("the tunnel was closed after %s", took)
	}
	select {
	case <-agent.done:
	case <-time.After(envoytest.Patience):
		t.Error("the agent goes on")
	}
}
