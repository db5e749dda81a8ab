package fleet

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// longestSilence is how long a connection of an idle edge may be without data: load balancers that close idle
	// connections wait longer, and do not count the kernel's keepalive.
	longestSilence = 30 * time.Second
	// idleTime is how long idle connections are observed, once a second: four times the 25 s between two pings of a
	// reverse tunnel, and a second less, so that each has four pings at most wherever the observation begins.
	idleTime = 99 * time.Second
	// closedAfter is longer than an edge keeps lanes without clients, and settled longer than reports of an edge
	// take whose connections have changed.
	closedAfter, settled = 5 * time.Minute, 20 * time.Second
	// dailyBytes is what an idle edge with two gateways may cost in a day, with all headers from IP on.
	dailyBytes = 20e6
	// headers is the size of the headers of a packet: IPv4, and TCP with timestamps.
	headers = 20 + 32
)

// TestAnIdleEdgeCostsLittle proves the promises about an edge that no client uses. It runs beside the other tests: it
// waits most of the time, and what it measures are bytes and timers of half a minute.
func TestAnIdleEdgeCostsLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.Options{Gateways: 2, Lean: true, WithoutWorkload: true, LogLevel: "info"})
	member := w.Member(t, "calm", nil)
	site, err := w.AddSite(t.Context(), "calm")
	must(t, err)
	edge := w.StartEdge(t, lab.EdgeSpec{
		Name: "edge-calm", Site: site.Namespace,
		// One address, as of a load balancer: an edge keeps its reverse tunnels through each address of a name.
		Hosts: map[string]netip.Addr{netns.PublicName: netns.PublicAddress(0)},
	}, member)
	eventually(t, edge.Ready)
	const connections = 2*2 + 1 // two reverse tunnels to each gateway, and the control channel
	eventually(t, func(ctx context.Context) error {
		all, err := toGateways(ctx, site.Namespace)
		if err == nil && len(all) != connections {
			err = fmt.Errorf("there are %d connections to gateways, want %d", len(all), connections)
		}
		return err
	})
	idle := &idleEdge{World: w, member: member, site: site.Namespace}
	that(t, "each connection of an idle edge has data at least every 30 s, for less than 20 MB a day", idle.unused)
	that(t, "so does each connection of an edge whose last client has gone, four minutes later", idle.used)
}

// idleEdge is an edge without clients at a site of its own.
type idleEdge struct {
	*world.World
	member *world.Member
	site   *netns.Namespace
}

func (e *idleEdge) unused(t *testing.T) {
	time.Sleep(settled)
	bytes, silence := e.observe(t, idleTime)
	measured("idle_edge_mb_per_day", bytes/1e6)
	measured("idle_edge_longest_silence_s", silence.Seconds())
}

// used uses the edge through each gateway until it has lanes. Then it waits until these are closed, and the tunnels
// that were used have been replaced.
func (e *idleEdge) used(t *testing.T) {
	before, err := toGateways(t.Context(), e.site)
	must(t, err)
	load := traffic.Start(t, calmRate, 1, "/whoami", e.member.Paths()...)
	eventually(t, func(ctx context.Context) error {
		now, err := toGateways(ctx, e.site)
		if least := len(before) + len(e.Gateways)*model.TunnelsInLanes(1); err == nil && len(now) < least {
			err = fmt.Errorf("there are %d connections, want %d at least, with lanes", len(now), least)
		}
		return err
	})
	must(t, load.Unbroken(traffic.Mark{}))
	load.Stop()
	began := time.Now()
	must(t, proc.Wait(t.Context(), closedAfter, func(ctx context.Context) error {
		now, err := toGateways(ctx, e.site)
		kept := 0
		for local := range now {
			if _, known := before[local]; known {
				kept++
			}
		}
		if err == nil && (len(now) != len(before) || kept > len(before)-len(e.Gateways)) {
			err = fmt.Errorf("%d of %d connections are the same, and %d are open", kept, len(before), len(now))
		}
		return err
	}))
	measured("used_tunnels_replaced_after_s", time.Since(began).Seconds())
	time.Sleep(settled)
	bytes, silence := e.observe(t, idleTime)
	measured("used_edge_mb_per_day", bytes/1e6)
	measured("used_edge_longest_silence_s", silence.Seconds())
}

// observe returns how many bytes of packets the connections to gateways would have in a day, and how long one was
// without data. It fails the test if either is too much, or if a connection ends.
func (e *idleEdge) observe(t *testing.T, span time.Duration) (bytesPerDay float64, silence time.Duration) {
	t.Helper()
	begin := time.Now()
	first, err := toGateways(t.Context(), e.site)
	must(t, err)
	for {
		now, err := toGateways(t.Context(), e.site)
		must(t, err)
		bytes, each := 0, map[string]int{}
		for local, c := range now {
			silence = max(silence, c.silence)
			if _, known := first[local]; !known {
				t.Fatalf("the connection from %s is new", local)
			}
			each[local] = c.bytes - first[local].bytes
			bytes += each[local]
		}
		if len(now) != len(first) {
			t.Fatalf("%d of %d connections have ended", len(first)-len(now), len(first))
		}
		if silence > longestSilence {
			t.Fatalf("a connection had no data for %s, want at most %s", silence, longestSilence)
		}
		if took := time.Since(begin); took > span {
			bytesPerDay = float64(bytes) * float64(24*time.Hour) / float64(took)
			if bytesPerDay > dailyBytes {
				t.Errorf(
					"it costs %.1f MB a day, want at most %.1f; bytes of each connection in %s: %v",
					bytesPerDay/1e6, dailyBytes/1e6, took, each,
				)
			}
			return bytesPerDay, silence
		}
		time.Sleep(time.Second)
	}
}

// idleConnection is a connection to a gateway: the bytes of all packets so far, and how long it is without data.
type idleConnection struct {
	bytes   int
	silence time.Duration
}

var (
	connectionField = regexp.MustCompile(`\b(bytes_sent|bytes_received|segs_out|segs_in|lastsnd|lastrcv):(\d+)`)
	localAddress    = regexp.MustCompile(`^\S+\s+\S+\s+(\S+)`)
)

// toGateways returns the connections of a site to the gateways' public ports, by their local address.
func toGateways(ctx context.Context, site *netns.Namespace) (map[string]idleConnection, error) {
	out, err := site.Command(
		ctx, "ss", "-tinOH", "state", "established", "dport", "=", strconv.Itoa(netns.PublicPort),
	).Output()
	if err != nil {
		return nil, fmt.Errorf("listing connections: %w", err)
	}
	all := map[string]idleConnection{}
	for line := range strings.Lines(string(out)) {
		local := localAddress.FindStringSubmatch(line)
		fields := map[string]int{}
		for _, f := range connectionField.FindAllStringSubmatch(line, -1) {
			if fields[f[1]], err = strconv.Atoi(f[2]); err != nil {
				return nil, fmt.Errorf("reading %q: %w", f[0], err)
			}
		}
		if local == nil || fields["segs_out"] == 0 {
			return nil, fmt.Errorf("reading connection: %q", line)
		}
		all[local[1]] = idleConnection{
			bytes:   fields["bytes_sent"] + fields["bytes_received"] + headers*(fields["segs_out"]+fields["segs_in"]),
			silence: time.Duration(max(fields["lastsnd"], fields["lastrcv"])) * time.Millisecond,
		}
	}
	return all, nil
}
