package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/cgroup"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// memoryLimit is that of the gateway's container: the agent with Envoy. Envoy gets three quarters of it as its heap.
	memoryLimit = 192 << 20
	// greedy is how many workload clusters have clients that read nothing of what they request. unread is the size of
	// their requests in bytes, and pace the time between two of them: Envoy checks its memory every 250 ms.
	greedy, unread = 4, 2 << 20
	pace           = 25 * time.Millisecond
	// most bounds the clients, so that a gateway that rejects none ends the test.
	most = 1500
	// soon is how long a rejected client waits, on a busy machine, and recovery the longest time until all is well after
	// the overload.
	soon     = 2 * time.Second
	recovery = 30 * time.Second
)

// TestOverloadedServersRejectWhatIsNewAndKeepWhatIsOpen overloads a gateway, whose agent and Envoy are in a control
// group with a memory limit, as a container is, and then an xds-server and the controller in others.
func TestOverloadedServersRejectWhatIsNewAndKeepWhatIsOpen(t *testing.T) {
	inTurn(t)
	w := newWorld(t, lab.Options{Lean: true, WithoutWorkload: true})
	quiet := w.Member(t, "quiet", nil)
	members := []*world.Member{quiet}
	for i := range greedy {
		members = append(members, w.Member(t, fmt.Sprintf("greedy-%d", i), nil))
	}
	gateway := w.Gateways[0]
	gateway.Hold()
	must(t, gateway.KillEnvoy())
	group, name := limit(t, gateway.Service, "gateway", memoryLimit)
	must(t, gateway.WaitReady(t.Context(), proc.StartTimeout, gateway.Ready))
	w.Edge(t, lab.EdgeSpec{Name: "edge"}, members...)
	for _, m := range members {
		eventually(t, m.Works)
	}
	before, err := w.Gateways[0].EnvoyPID()
	must(t, err)
	var open []*traffic.Follower
	for i := range 8 {
		f, err := quiet.Path(0, i%2 == 0).Follow(t.Context())
		must(t, err)
		t.Cleanup(f.Close)
		open = append(open, f)
	}
	session, err := quiet.Path(0, false).Open(within(t))
	must(t, err)
	defer session.Close()

	var stalled throng
	defer stalled.leave()
	that(t, "a gateway with twice the clients that it has memory for rejects the others at once", func(t *testing.T) {
		stalled.fill(t, members[1:])
		memory, err := group.Memory(name)
		must(t, err)
		measured("overload_memory_mb", float64(memory.Highest>>20))
		t.Logf(
			"%d clients have stopped reading, %d were rejected, the slowest in %v; the highest use of memory is %d of %d MB",
			len(stalled.sessions), stalled.rejected, stalled.slowest, memory.Highest>>20, memoryLimit>>20,
		)
		measured("overload_rejection_s", stalled.slowest.Seconds())
		if stalled.rejected < len(stalled.sessions) {
			t.Error("the gateway has accepted more clients than it has rejected, so this was no overload")
		}
		if stalled.slowest > soon {
			t.Errorf("a client was rejected after %v", stalled.slowest)
		}
		if memory.Kills > 0 {
			t.Errorf("the kernel has killed %d processes", memory.Kills)
		}
	})
	that(t, "connections that were open before stay open and answer", func(t *testing.T) {
		for _, f := range open {
			must(t, f.Alive())
		}
		_, err := session.Get(within(t), "/whoami")
		must(t, err)
		if after, err := w.Gateways[0].EnvoyPID(); err != nil || after != before {
			t.Errorf("Envoy was process %d, and is %d: %v", before, after, err)
		}
	})
	that(t, "30 s after the overload every workload cluster works again", func(t *testing.T) {
		stalled.leave()
		took := world.Took(t, recovery, func(ctx context.Context) error {
			var failed error
			for _, m := range members {
				failed = errors.Join(failed, m.Works(ctx))
			}
			return failed
		})
		measured("overload_recovery_s", took.Seconds())
		for _, f := range open {
			must(t, f.Alive())
		}
		must(t, w.Gateways[0].Ready(t.Context()))
	})
	overloadXDSServer(t, w, members[1:], quiet)
	overloadController(t, w, quiet)
	w.Logs(t)
}

// container mounts the control groups, as a container runtime does, enters one, and runs a program.
const container = `set -e
if [ "$1" = 2 ]; then
  mount -t cgroup2 none /sys/fs/cgroup
else
  mount -t tmpfs none /sys/fs/cgroup
  mkdir /sys/fs/cgroup/memory
  mount -t cgroup -o memory none /sys/fs/cgroup/memory
fi
echo $$ > "$0"
shift
exec "$@"`

// limit restarts a service in a control group with a memory limit in bytes.
func limit(t *testing.T, s *proc.Service, of string, bytes uint64) (group cgroup.Hierarchies, name string) {
	t.Helper()
	group, err := cgroup.Find()
	must(t, err)
	name = fmt.Sprintf("fairlead-overload-%s-%d", of, os.Getpid())
	must(t, group.Make(name))
	t.Cleanup(func() { must(t, group.Remove(context.Background(), name)) })
	procs, err := group.LimitMemory(name, bytes)
	must(t, err)
	s.Hold()
	s.Change(func(spec *proc.Spec) {
		spec.Args = append(
			[]string{"--mount", "sh", "-c", container, procs, strconv.Itoa(group.Version), spec.Program}, spec.Args...,
		)
		spec.Program = "unshare"
	})
	s.Resume()
	return group, name
}

// throng are clients that request something and read nothing of it.
type throng struct {
	sessions []*traffic.Session
	rejected int
	slowest  time.Duration // rejection
}

// fill opens clients of all members in turn, until as many were rejected as have been accepted.
func (c *throng) fill(t *testing.T, members []*world.Member) {
	t.Helper()
	for i := 0; i < most && (c.rejected == 0 || c.rejected < len(c.sessions)); i++ {
		began := time.Now()
		s, err := members[i%len(members)].Path(0, i/len(members)%2 == 0).Open(within(t))
		if err == nil {
			err = s.Ask(fmt.Sprintf("/bytes/%d", unread))
		}
		if err == nil {
			c.sessions = append(c.sessions, s)
		} else {
			s.Close()
			c.rejected++
			c.slowest = max(c.slowest, time.Since(began))
		}
		time.Sleep(pace)
	}
}

func (c *throng) leave() {
	for _, s := range c.sessions {
		s.Close()
	}
	c.sessions = nil
}
