package robustness

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/traffic"
)

const (
	// plantedFor is how long planted bugs run: longer than a revoked edge may still carry requests, and longer than a
	// patient client waits.
	plantedFor = 9 * time.Second
	// plantedSettle is how soon everything must work in the run with the planted bugs.
	plantedSettle = time.Second
	// leaked is how many connections are leaked, and impatience the bound that a patient client exceeds.
	leaked, impatience = 500, 3 * time.Second
)

// bug is a bug that is planted into the running installation, or into what its clients do, and the rule by which the
// check must find it.
type bug struct {
	what, rule, about string // about is a text of the violation
	last              bool   // planted right before the last requests
	plant             func() (remove func())
}

// plant plants those of the bugs whose time has come, and returns what removes them.
func plant(t *testing.T, bugs []bug, last bool) (remove func()) {
	t.Helper()
	var all []func()
	for _, b := range bugs {
		if b.plant != nil && b.last == last {
			all = append(all, b.plant())
		}
	}
	return func() {
		for _, remove := range all {
			remove()
		}
	}
}

// planted plants the first bugs, all at the same time and each at a place of its own, and proves that the check finds
// each of them.
func (in *installation) planted(t *testing.T, first int) {
	bugs := in.bugs(t)[:first]
	in.ignoreRevocations = true
	run := Entry{Settle: plantedSettle}
	history := in.play(t, run, []Step{{Action: Revoke, Target: "paris/0"}}, plantedFor, bugs)
	in.ignoreRevocations = false
	in.stopOld("paris", 0) // it was not revoked, so later runs would not expect it
	must(t, in.settled(t.Context(), settle))
	found := Check(history)
	for _, b := range bugs {
		that(t, "the check finds that "+b.what, func(t *testing.T) {
			if !slices.ContainsFunc(found, func(v Violation) bool {
				return v.Rule == b.rule && strings.Contains(v.What, b.about)
			}) {
				t.Errorf("it does not: of %d violations none is %q about %q", len(found), b.rule, b.about)
			}
		})
	}
}

// bugs returns all bugs that can be planted. The first two are those of the short form.
func (in *installation) bugs(t *testing.T) []bug {
	nothing := func() func() { return func() {} }
	other := in.standIn["paris"].APIServer
	if in.long {
		other = in.members["berlin"].real // which rejects the clients of tokyo
	}
	return []bug{
		{what: "another workload cluster answers", rule: RuleWrong, about: "tokyo", plant: func() func() {
			return in.swap(t, "tokyo", other)
		}},
		{what: "a revocation is confirmed but not enforced", rule: RuleRevoked, about: "paris", plant: nothing},
		{what: "a revoked edge still gets its configuration", rule: RuleSubject, plant: nothing},
		{what: "a Cluster that was deleted answers for its successor", rule: RuleWrong, about: "oslo", plant: func() func() {
			return in.expectOther("oslo", "the successor", true)
		}},
		{what: "requests fail without a fault", rule: RuleCalm, about: "rome", plant: func() func() {
			return in.freezeEdge(t, "rome", plantedFor-2*time.Second)
		}},
		{what: "a request exceeds its bound", rule: RuleBound, about: "patient", plant: func() func() {
			go in.patient(in.members["rome"], in.history)
			return func() {}
		}},
		{what: "a request never ends", rule: RuleLost, about: "abandoned", plant: func() func() {
			in.history.Begin(Entry{Kind: KindAsk, Client: "abandoned", Cluster: "oslo"})
			return func() {}
		}},
		{what: "connections are never closed", rule: RuleUsage, about: "open files", plant: func() func() {
			return in.leak(t)
		}},
		{what: "a log contains a token", rule: RuleSecret, plant: func() func() {
			file := in.LogFile("planted")
			must(t, os.WriteFile(file, []byte("token: eyJhbGciOiJub25lIn0\n"), 0o600))
			return func() { must(t, os.Remove(file)) }
		}},
		{what: "a tunnel stays down", rule: RuleSettled, about: "berlin", last: true, plant: func() func() {
			return in.stopForAWhile(t, "berlin")
		}},
		{what: "a tunnel outlives its label", rule: RuleUnwanted, about: "rome", last: true, plant: func() func() {
			return in.expectOther("rome", in.members["rome"].answer, false)
		}},
		{what: "an apiserver reaches the network of another", rule: RuleWrong, about: "bern", plant: func() func() {
			r, other := in.remote("bern"), in.remote("vienna")
			r.crossed.Store(&other.Socket)
			return func() { r.crossed.Store(nil) }
		}},
	}
}

// swap makes the edges of a stand-in's Cluster lead to another apiserver.
func (in *installation) swap(t *testing.T, name string, to *kube.APIServer) (remove func()) {
	t.Helper()
	from := in.standIn[name]
	from.Stop()
	listener, err := in.Network.Workload.Listen(t.Context(), from.Endpoint.String())
	must(t, err)
	go netns.ForwardAll(listener, func() (net.Conn, error) {
		return in.Network.Workload.DialContext(t.Context(), "tcp", to.Endpoint.String())
	})
	return func() {
		must(t, listener.Close())
		from.Start()
	}
}

// expectOther expects something else of a member than what is true, so that what is true becomes wrong.
func (in *installation) expectOther(name, answer string, up bool) (remove func()) {
	m := in.members[name]
	was, wasUp := m.answer, m.up
	in.expect(m, answer, up)
	return func() { in.expect(m, was, wasUp) }
}

// freezeEdge freezes the Envoy of the only edge of a Cluster for some time. The history does not have it as a step.
func (in *installation) freezeEdge(t *testing.T, name string, length time.Duration) (remove func()) {
	t.Helper()
	p, err := in.place(name, "0")
	must(t, err)
	// Its agent would replace an Envoy that hangs.
	must(t, p.Process().Freeze())
	_, thaw, err := p.FreezeEnvoy()
	must(t, err)
	thawed := make(chan error, 1)
	time.AfterFunc(length, func() {
		thaw()
		thawed <- p.Process().Thaw()
	})
	return func() { must(t, <-thawed) }
}

// patient is a client that waits for longer than it should.
func (in *installation) patient(m *member, history *Recorder) {
	p := m.paths()[0]
	ask := Entry{Kind: KindAsk, Client: "patient", Cluster: m.name, Path: p.String(), Bound: impatience}
	id, _ := history.Begin(ask)
	answer := Entry{Kind: KindAnswer, ID: id}
	ctx, cancel := context.WithTimeout(context.Background(), 2*impatience)
	defer cancel()
	if err := m.exchange(ctx, p, &answer, nil); err != nil {
		answer.Error = err.Error()
	}
	history.Add(answer)
}

// leak opens connections to an xds-server that nobody uses.
func (in *installation) leak(t *testing.T) (remove func()) {
	t.Helper()
	var address string
	for _, target := range in.Targets() {
		if target.Job == "xds-server" {
			address = target.Address
		}
	}
	var open []net.Conn
	for range leaked {
		conn, err := in.Network.Management.DialContext(t.Context(), "tcp", address)
		must(t, err)
		_, err = fmt.Fprint(conn, "GET /metrics HTTP/1.1\r\nHost: leak\r\n\r\n") // an idle connection of HTTP is kept
		must(t, err)
		open = append(open, conn)
	}
	return func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}
}

// stopForAWhile ends the only edge of a Cluster with its Envoy.
func (in *installation) stopForAWhile(t *testing.T, name string) (remove func()) {
	t.Helper()
	p, err := in.place(name, "0")
	must(t, err)
	p.Hold()
	must(t, p.KillEnvoy())
	return func() {
		p.Resume()
		must(t, p.WaitReady(context.Background(), traffic.RequestTimeout*4, p.Ready))
	}
}
