package robustness

import (
	"bytes"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	second = time.Second
	bound  = 5 * second
	path   = "paris by sni through gateway-1"
)

// story builds a history. Its times are written by hand, so that each rule has its own small example.
type story []Entry

func begin() story {
	return story{
		{Kind: KindRun, Seed: 1, Settle: 60 * second},
		{Kind: KindExpect, Cluster: "paris", Answer: "paris#1", Up: true},
		{Kind: KindDenied, Client: "edge-1", Name: "edge-2"},
	}
}

func (s story) add(more ...Entry) story { return append(s, more...) }

// ask adds a request for paris that begins at a time and takes a time.
func (s story) ask(at, took time.Duration, answer Entry) story {
	id := int64(len(s))
	answer.At, answer.Kind, answer.ID = at+took, KindAnswer, id
	return s.add(Entry{At: at, Kind: KindAsk, ID: id, Client: "short", Cluster: "paris", Path: path, Bound: bound}, answer)
}

// stream adds a watch of paris that lasts until something breaks it.
func (s story) stream(at, last, ended time.Duration, edge string) story {
	id := int64(len(s))
	return s.add(Entry{At: at, Kind: KindAsk, ID: id, Client: "watch", Cluster: "paris"},
		Entry{At: ended, Kind: KindAnswer, ID: id, Answer: "paris#1", Edge: edge, Last: last, Error: "broken"})
}

func (s story) step(at, until time.Duration) story { return s.freeze("paris/0/envoy", at, until) }

func (s story) freeze(target string, at, until time.Duration) story {
	return s.fault("freeze", target, at, until)
}

func (s story) kill(target string, at, until time.Duration) story {
	return s.fault("kill", target, at, until)
}

func (s story) fault(action, target string, at, until time.Duration) story {
	s = s.text("0s 1s "+action+" "+target, at, until)
	s[len(s)-2].Fault = true
	return s
}

// both adds faults of both edges of paris.
func (s story) both(at, until time.Duration) story {
	return s.step(at, until).freeze("paris/1/envoy", at, until)
}

// text adds a step that is under way from one time to another.
func (s story) text(step string, at, until time.Duration) story {
	id := int64(len(s))
	return s.add(Entry{At: at, Kind: KindStep, ID: id, Text: step}, Entry{At: until, Kind: KindDone, ID: id})
}

// held adds a fault that holds up an edge.
func (s story) held(fault Action, at, until time.Duration) story {
	id := int64(len(s))
	held := Entry{At: at, Kind: KindHeld, ID: id, Edge: "10.0.0.1", Text: string(fault)}
	released := held
	released.At, released.Kind = until, KindReleased
	return s.add(held, released)
}

// carried adds a request that arrives through an edge.
func (s story) carried(at time.Duration, edge string) story {
	return s.add(Entry{At: at, Kind: KindCarried, Cluster: "paris", Edge: edge})
}

// network adds a request from the apiserver of bern to its network, and one that works in the end.
func (s story) network(name string, answer Entry) story {
	s = s.add(Entry{Kind: KindExpect, Cluster: "bern", Answer: name, Up: true})
	for at, a := range map[time.Duration]Entry{100 * second: answer, 950 * second: {Answer: name}} {
		s = s.ask(at, second, a)
		ask := &s[len(s)-2]
		ask.Cluster, ask.Path = "bern", EgressPath
		if at > 900*second {
			ask.Client = Final
		}
	}
	return s
}

// revoked adds the revocation of a node, and fetched resources that it got.
func (s story) revoked(node string, at time.Duration) story {
	return s.add(Entry{At: at, Kind: KindRevoked, Cluster: "paris", Edge: "10.0.0.1", Name: node})
}

// revoking adds the begin of such a revocation, and retired an edge of a Tunnel that has ended.
func (s story) revoking(at time.Duration) story {
	return s.add(Entry{At: at, Kind: KindRevoking, Cluster: "paris", Name: "edge-1"})
}

func (s story) retired(at time.Duration) story {
	return s.add(Entry{At: at, Kind: KindRetired, Cluster: "paris", Edge: "10.0.0.1"})
}

// readyNow adds the condition of paris in the end.
func (s story) readyNow(up bool) story {
	return s.add(Entry{At: 950 * second, Kind: KindReady, Client: Final, Cluster: "paris", Up: up})
}

// networkStream adds a stream from the apiserver of bern into its network, from a time until 100 s.
func (s story) networkStream(at time.Duration) story {
	s = s.network("bern-net", Entry{Answer: "bern-net"}).stream(at, 99*second, 100*second, "")
	s[len(s)-2].Cluster, s[len(s)-2].Path, s[len(s)-1].Answer = "bern", EgressPath, "bern-net"
	return s
}

func (s story) fetched(node string, at time.Duration) story {
	return s.add(Entry{At: at, Kind: KindFetched, Name: node})
}

// ready adds a change of the condition of paris.
func (s story) ready(at time.Duration, up bool) story {
	return s.add(Entry{At: at, Kind: KindReady, Cluster: "paris", Up: up})
}

// failing adds requests for paris that fail, one after the other.
func (s story) failing(from, to time.Duration) story {
	for at := from; at < to; at += 5 * second {
		s = s.ask(at, 4*second, Entry{Error: "reset"})
	}
	return s
}

// moved adds a move of paris to the second installation.
func (s story) moved(at, arrived time.Duration) story {
	return s.add(Entry{At: at, Kind: KindMoved, Cluster: "paris" + Second},
		Entry{At: arrived, Kind: KindArrived, Cluster: "paris" + Second})
}

// transferred adds a move of paris to the second installation, from 80 s to 100 s.
func (s story) transferred() story {
	return s.text("0s 1s transfer paris", 65*second, 950*second).
		add(Entry{At: 80 * second, Kind: KindLeaves, Cluster: "paris"}).expect(90*second, "paris#1", false).
		add(Entry{At: 90 * second, Kind: KindExpect, Cluster: "paris" + Second, Answer: "paris#1", Up: true}).
		moved(90*second, 100*second)
}

// arrived ends a run after such a move.
func (s story) arrived() story {
	return s.final(Entry{Error: "reset"}).there(950*second, good, Final).add(Entry{At: 1000 * second, Kind: KindFinish})
}

// there adds a request for paris in the second installation.
func (s story) there(at time.Duration, answer Entry, client string) story {
	s = s.ask(at, second, answer)
	ask := &s[len(s)-2]
	ask.Cluster, ask.Path, ask.Client = "paris"+Second, path+Second, client
	return s
}

// inSecond adds a request for paris in the second installation that fails, and one that works in the end.
func (s story) inSecond(failure string) story {
	s = s.add(Entry{Kind: KindExpect, Cluster: "paris" + Second, Answer: "paris#1", Up: true}).
		ask(100*second, second, Entry{Error: failure}).ask(950*second, second, good)
	for i := len(s) - 4; i < len(s); i += 2 {
		s[i].Cluster, s[i].Path = "paris"+Second, path+Second
	}
	s[len(s)-2].Client = Final
	return s
}

// finish ends a run as it should end: everything answers after the last step.
func (s story) finish() story {
	return s.final(Entry{Answer: "paris#1"}).add(Entry{At: 1000 * second, Kind: KindFinish})
}

// final adds a request that was sent after the run had settled.
func (s story) final(answer Entry) story {
	s = s.ask(900*second, second, answer)
	s[len(s)-2].Client = Final
	return s
}

func (s story) expect(at time.Duration, name string, up bool) story {
	return s.add(Entry{At: at, Kind: KindExpect, Cluster: "paris", Answer: name, Up: up})
}

func (s story) revoke(at time.Duration) story {
	return s.add(Entry{At: at, Kind: KindRevoked, Cluster: "paris", Edge: "10.0.0.1"})
}

func (s story) late(at, late time.Duration) story {
	return s.add(Entry{At: at, Kind: KindLate, Late: late})
}

func (s story) usage(after bool, e Entry) story {
	e.Kind, e.Process, e.After = KindUsage, "edge-agent", after
	return s.add(e)
}

// disk adds the size of the state folder of a process, before the first step and after the last one.
func (s story) disk(process string, before, after uint64) story {
	return s.add(Entry{Kind: KindUsage, Process: process, Disk: before},
		Entry{Kind: KindUsage, Process: process, After: true, Disk: after})
}

var good = Entry{Answer: "paris#1", Edge: "10.0.0.1"}

var stories = map[string]struct {
	in    story
	want  []string // rules
	voids []string // rules of missed times that do not count
}{
	"everything answers": {in: begin().ask(second, second, good).finish()},
	"another workload cluster answers": {
		in:   begin().ask(second, second, Entry{Answer: "oslo#1"}).finish(),
		want: []string{RuleWrong},
	},
	"the previous one of its name answers": {
		in: begin().expect(10*second, "paris#2", true).ask(16*second, second, good).
			final(Entry{Answer: "paris#2"}).add(Entry{Kind: KindFinish}),
		want: []string{RuleWrong},
	},
	"the previous one answers at first": {
		in: begin().expect(10*second, "paris#2", true).ask(14*second, second, good).
			final(Entry{Answer: "paris#2"}).add(Entry{Kind: KindFinish}),
	},
	"a revoked edge carries a request": {
		in:   begin().revoke(10*second).ask(16*second, second, good).finish(),
		want: []string{RuleRevoked},
	},
	"a revoked edge carries one at once": {in: begin().revoke(10*second).ask(14*second, second, good).finish()},
	"another edge carries a request": {
		in: begin().revoke(10*second).ask(16*second, second, Entry{Answer: "paris#1", Edge: "10.0.0.2"}).finish(),
	},
	"a new edge in the place of a revoked one": {
		in: begin().revoke(10*second).add(Entry{At: 12 * second, Kind: KindPlaced, Edge: "10.0.0.1"}).
			ask(16*second, second, good).finish(),
	},
	"a revoked edge before another has its place": {
		in: begin().revoke(10*second).add(Entry{At: 18 * second, Kind: KindPlaced, Edge: "10.0.0.1"}).
			ask(16*second, second, good).finish(),
		want: []string{RuleRevoked},
	},
	"a revoked edge keeps a stream": {
		in: begin().step(9*second, 20*second).revoke(10*second).
			stream(second, 17*second, 18*second, "10.0.0.1").finish(),
		want: []string{RuleRevoked},
	},
	"a revoked edge loses its stream": {
		in: begin().step(9*second, 20*second).revoke(10*second).
			stream(second, 11*second, 18*second, "10.0.0.1").finish(),
	},
	"a request takes too long": {
		in:   begin().ask(second, 6*second, good).finish(),
		want: []string{RuleBound},
	},
	"a request takes as long as it may": {in: begin().ask(second, 5*second, good).finish()},
	"a request takes too long when all do": {
		in:    begin().late(3*second, second).ask(second, 6*second, good).finish(),
		voids: []string{RuleBound},
	},
	"the canary was late at another time": {
		in:   begin().late(90*second, second).ask(second, 6*second, good).finish(),
		want: []string{RuleBound},
	},
	"the canary was hardly late": {
		in:   begin().late(3*second, second/10).ask(second, 6*second, good).finish(),
		want: []string{RuleBound},
	},
	"a request has no end": {
		in:   begin().add(Entry{Kind: KindAsk, ID: 99, Cluster: "paris", Bound: bound}).finish(),
		want: []string{RuleLost},
	},
	"a request fails without a reason": {
		in:   begin().ask(100*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails during a fault": {
		in: begin().step(99*second, 110*second).ask(100*second, second, Entry{Error: "reset"}).finish(),
	},
	"a request fails soon after a fault": {
		in: begin().both(10*second, 60*second).ask(100*second, second, Entry{Error: "reset"}).finish(),
	},
	"a request fails long after a fault": {
		in:   begin().both(10*second, 59*second).ask(100*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails soon after the begin of a fault of one of two edges": {
		in: begin().step(60*second, 80*second).ask(99*second, second, Entry{Error: "reset"}).finish(),
	},
	"a request fails long after it": {
		in:   begin().step(60*second, 80*second).ask(101*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails long after an Envoy was killed": {
		in:   begin().kill("paris/0/envoy", 60*second, 75*second).ask(101*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails while an edge is revoked": {
		in: begin().text("0s 1s revoke paris/0", 60*second, 90*second).revoke(95*second).
			ask(99*second, second, Entry{Error: "reset"}).finish(),
	},
	"a request fails while the next edge is started": {
		in: begin().add(Entry{At: 60 * second, Kind: KindStep, ID: 99, Text: "0s 1s revoke paris/0"}).revoke(62*second).
			add(Entry{At: 120 * second, Kind: KindDone, ID: 99}).ask(103*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails while the agent of its edge is killed": {
		in:   begin().kill("paris/0/agent", 99*second, 110*second).ask(100*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails while the agent of its edge is of an earlier version": {
		in: begin().text("0s 1s downgrade paris/0/agent", 99*second, 110*second).
			ask(100*second, second, Entry{Error: "reset"}).finish(),
	},
	"a request fails while the agent of its gateway is killed": {
		in:   begin().kill("gateway/1/agent", 99*second, 110*second).ask(100*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails while its Cluster is paused": {
		in: begin().text("0s 1s pause paris", 99*second, 110*second).
			ask(100*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails while its kubeconfig gets another mode": {
		in: begin().text("0s 1s connect paris", 99*second, 110*second).
			ask(100*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails while its Tunnel gets limits": {
		in: begin().text("0s 1s limits paris", 99*second, 110*second).
			ask(100*second, second, Entry{Error: "reset"}).finish(),
	},
	"a request fails while an xds-server is of an earlier version": {
		in: begin().text("0s 1s downgrade xds-server/0", 99*second, 110*second).
			ask(100*second, second, Entry{Error: "reset"}).finish(),
	},
	"a step fails": {
		in: begin().add(Entry{At: second, Kind: KindStep, ID: 99, Text: "0s 1s pause paris"},
			Entry{At: 2 * second, Kind: KindDone, ID: 99, Error: "beginning it: refused"}).finish(),
		want: []string{RuleStep},
	},
	"another apiserver rejects a request": {
		in:   begin().ask(second, second, Entry{Answer: "berlin", Error: "401 Unauthorized"}).finish(),
		want: []string{RuleWrong},
	},
	"a request fails during a fault of another workload cluster": {
		in:   begin().kill("oslo/0/envoy", 99*second, 110*second).ask(100*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails while its gateway is killed": {
		in: begin().kill("gateway/1/envoy", 99*second, 110*second).ask(100*second, second, Entry{Error: "reset"}).finish(),
	},
	"a request fails while another gateway is frozen, which may have relayed its tunnel": {
		in: begin().freeze("gateway/0/envoy", 99*second, 110*second).ask(125*second, second, Entry{Error: "reset"}).finish(),
	},
	"a request fails long after another gateway was frozen": {
		in: begin().freeze("gateway/0/envoy", 99*second, 110*second).
			ask(131*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a stream breaks when something is denied, after the disk of a gateway was full": {
		in: begin().fault("fill-disk", "gateway/1", 99*second, 110*second).
			text("0s 1s delete oslo", 230*second, 232*second).stream(180*second, 239*second, 240*second, "10.0.0.1").finish(),
	},
	"a stream breaks after the disk of a gateway was full": {
		in: begin().fault("fill-disk", "gateway/1", 99*second, 110*second).
			stream(180*second, 239*second, 240*second, "10.0.0.1").finish(),
		want: []string{RuleCalm},
	},
	"a stream breaks when something is denied": {
		in: begin().fault("fill-disk", "paris/1", 99*second, 110*second).
			text("0s 1s delete oslo", 230*second, 232*second).stream(180*second, 239*second, 240*second, "10.0.0.1").finish(),
		want: []string{RuleCalm},
	},
	"a request fails when something is denied, after the disk of a gateway was full": {
		in: begin().fault("fill-disk", "gateway/1", 99*second, 110*second).
			text("0s 1s delete oslo", 230*second, 232*second).ask(239*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails while the xds-server is killed": {
		in:   begin().kill("xds-server/0", 99*second, 110*second).ask(100*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a step that cannot be read": {
		in: begin().kill("nothing", second, second).finish(), want: []string{RuleHistory},
	},
	"a request fails before it should work": {in: begin().ask(50*second, second, Entry{Error: "reset"}).finish()},
	"a request fails at the begin of a run, where everything works": {
		in: begin().add(Entry{Kind: KindExpect, Cluster: "paris", Answer: "paris#1", Up: true, Settled: true}).
			ask(second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a stream breaks without a reason": {
		in:   begin().stream(second, 99*second, 100*second, "").finish(),
		want: []string{RuleCalm},
	},
	"a stream breaks during a fault": {
		in: begin().step(99*second, 110*second).stream(second, 99*second, 100*second, "").finish(),
	},
	"nothing answers in the end": {
		in:   begin().final(Entry{Error: "reset"}).add(Entry{Kind: KindFinish}),
		want: []string{RuleSettled},
	},
	"nothing answers, and the machine is late": {
		in:    begin().late(800*second, 50*second).final(Entry{Error: "reset"}).add(Entry{Kind: KindFinish}),
		voids: []string{RuleSettled},
	},
	"a kubeconfig does not work": {
		in: begin().add(Entry{At: 990 * second, Kind: KindKubeconfig, Cluster: "paris", Error: "no such name"}).
			finish(),
		want: []string{RuleKubeconfig},
	},
	"a kubeconfig works": {
		in: begin().add(Entry{At: 890 * second, Kind: KindKubeconfig, Cluster: "paris"}).finish(),
	},
	"a kubeconfig does not work, nor does any path": {
		in: begin().add(Entry{At: 890 * second, Kind: KindKubeconfig, Cluster: "paris", Error: "refused"}).
			final(Entry{Error: "reset"}).add(Entry{Kind: KindFinish}),
		want: []string{RuleSettled},
	},
	"resources for a revoked edge": {
		in:   begin().revoked("edge-1", 10*second).fetched("edge-1", 16*second).finish(),
		want: []string{RuleSubject},
	},
	"resources for a revoked edge at first": {
		in: begin().revoked("edge-1", 10*second).fetched("edge-1", 14*second).finish(),
	},
	"resources for an edge that was not revoked": {
		in: begin().revoked("edge-1", 10*second).fetched("edge-2", 16*second).finish(),
	},
	"resources for another edge": {
		in:   begin().add(Entry{At: second, Kind: KindFetched, Name: "edge-2", Client: "edge-1"}).finish(),
		want: []string{RuleSubject},
	},
	"a request arrives through a revoked edge, and its client gets no answer": {
		in:   begin().revoke(10*second).carried(16*second, "10.0.0.1").finish(),
		want: []string{RuleRevoked},
	},
	"a request arrives through a revoked edge at first": {
		in: begin().revoke(10*second).carried(14*second, "10.0.0.1").finish(),
	},
	"a revoked edge is frozen and forwards what it had before": {
		in: begin().held(Freeze, 9*second, 20*second).revoke(10*second).carried(24*second, "10.0.0.1").finish(),
	},
	"a revoked edge is frozen and forwards something long after": {
		in:   begin().held(Freeze, 9*second, 20*second).revoke(10*second).carried(26*second, "10.0.0.1").finish(),
		want: []string{RuleRevoked},
	},
	"a revoked edge is frozen when its time is over": {
		in:   begin().revoke(10*second).held(Freeze, 16*second, 20*second).carried(21*second, "10.0.0.1").finish(),
		want: []string{RuleRevoked},
	},
	"a revoked edge was frozen before": {
		in:   begin().held(Freeze, 2*second, 9*second).revoke(10*second).carried(16*second, "10.0.0.1").finish(),
		want: []string{RuleRevoked},
	},
	"a revoked edge sends again what was lost": {
		in: begin().held(Unplug, 10*second, 20*second).revoke(10*second).carried(34*second, "10.0.0.1").finish(),
	},
	"a revoked edge sends something long after its packets were lost": {
		in:   begin().held(Unplug, 10*second, 20*second).revoke(10*second).carried(36*second, "10.0.0.1").finish(),
		want: []string{RuleRevoked},
	},
	"a request arrives through a new edge in the place of a revoked one": {
		in: begin().revoke(10*second).add(Entry{At: 12 * second, Kind: KindPlaced, Edge: "10.0.0.1"}).
			carried(16*second, "10.0.0.1").finish(),
	},
	"a network answers for another": {
		in:   begin().network("bern-net", Entry{Answer: "vienna-net"}).finish(),
		want: []string{RuleWrong},
	},
	"a network answers": {in: begin().network("bern-net", Entry{Answer: "bern-net"}).finish()},
	"a network does not answer while an xds-server has a version without networks": {
		in: begin().text("0s 1s downgrade xds-server/0", 90*second, 101*second).
			network("bern-net", Entry{Error: "reset"}).finish(),
	},
	"a stream into a network ends after a Cluster was deleted": {
		in: begin().text("0s 1s delete oslo", 90*second, 101*second).
			network("bern-net", Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a network does not answer while an xds-server is killed": {
		in:   begin().kill("xds-server/0", 90*second, 101*second).network("bern-net", Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a network does not answer while the agent of a gateway is killed": {
		in: begin().kill("gateway/1/agent", 90*second, 101*second).network("bern-net", Entry{Error: "reset"}).finish(),
	},
	"a network does not answer while the agent of its edge is killed": {
		in:   begin().kill("bern/0/agent", 90*second, 101*second).network("bern-net", Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a request fails while the edge's name of the gateways is wrong": {
		in: begin().text("0s 1s wrong-dns paris/0", 99*second, 110*second).
			ask(100*second, second, Entry{Error: "reset"}).finish(),
		want: []string{RuleCalm},
	},
	"a process is not there in the end": {
		in:   begin().usage(true, Entry{At: 990 * second, Error: "refused"}).finish(),
		want: []string{RuleUsage},
	},
	"a process is not there in the end, and the machine is late": {
		in:    begin().late(980*second, 10*second).usage(true, Entry{At: 990 * second, Error: "refused"}).finish(),
		voids: []string{RuleUsage},
	},
	"Envoy's heap grows": {
		in:   begin().usage(false, Entry{Heap: 5 << 20}).usage(true, Entry{Heap: 30 << 20}).finish(),
		want: []string{RuleUsage},
	},
	"Envoy's heap varies": {
		in: begin().usage(false, Entry{Heap: 5 << 20}).usage(true, Entry{Heap: 20 << 20}).finish(),
	},
	"ready although nothing answers": {
		in:   begin().step(99*second, 190*second).ready(second, true).failing(100*second, 170*second).finish(),
		want: []string{RuleReady},
	},
	"ready although nothing answers for a while": {
		in: begin().step(99*second, 190*second).ready(second, true).failing(100*second, 150*second).finish(),
	},
	"ready although some requests fail": {
		in: begin().step(99*second, 190*second).ready(second, true).failing(100*second, 140*second).
			ask(141*second, second, good).failing(145*second, 180*second).finish(),
	},
	"not ready while nothing answers": {
		in: begin().step(99*second, 190*second).ready(second, true).ready(130*second, false).
			failing(100*second, 180*second).finish(),
	},
	"ready again although nothing answers": {
		in: begin().step(99*second, 220*second).ready(second, true).ready(105*second, false).ready(110*second, true).
			failing(100*second, 180*second).finish(),
		want: []string{RuleReady},
	},
	"ready although nothing answers, while the controller is down": {
		in: begin().step(99*second, 190*second).kill("controller/0", 110*second, 120*second).ready(second, true).
			failing(100*second, 180*second).finish(),
	},
	"ready although nothing answers, long after the controller was down": {
		in: begin().step(99*second, 220*second).kill("controller/0", 110*second, 120*second).ready(second, true).
			failing(100*second, 200*second).finish(),
		want: []string{RuleReady},
	},
	"what should not answer does in the end": {
		in:   begin().expect(10*second, "paris#1", false).finish(),
		want: []string{RuleUnwanted},
	},
	"what should not answer does not": {
		in: begin().expect(10*second, "paris#1", false).final(Entry{Error: "reset"}).add(Entry{Kind: KindFinish}),
	},
	"what should not answer does for long": {
		in: begin().expect(10*second, "paris#1", false).ask(80*second, second, good).
			expect(90*second, "paris#1", true).finish(),
		want: []string{RuleUnwanted},
	},
	"what should not answer does at first": {
		in: begin().expect(10*second, "paris#1", false).ask(40*second, second, good).
			expect(90*second, "paris#1", true).finish(),
	},
	"what should not answer does while it opts out": {
		in: begin().text("0s 1s opt-out tokyo", 9*second, 95*second).expect(10*second, "paris#1", false).
			ask(80*second, second, good).expect(90*second, "paris#1", true).finish(),
		want: []string{RuleUnwanted},
	},
	"what should not answer does while what ends tunnels is broken": {
		in: begin().expect(10*second, "paris#1", false).kill("controller/0", 11*second, 61*second).
			ask(80*second, second, good).expect(90*second, "paris#1", true).finish(),
	},
	"what should not answer does when it should again": {
		in: begin().expect(10*second, "paris#1", false).ask(80*second, 5*second, good).
			expect(82*second, "paris#1", true).finish(),
	},
	"no last request": {
		in:   begin().ask(second, second, good).add(Entry{Kind: KindFinish}),
		want: []string{RuleHistory},
	},
	"no end":   {in: begin().final(good), want: []string{RuleHistory}},
	"no begin": {in: begin().finish()[1:], want: []string{RuleHistory}},
	"a step without an end": {
		in:   begin().add(Entry{Kind: KindStep, ID: 99, Text: "0s 1s kill controller/0"}).finish(),
		want: []string{RuleHistory},
	},
	"a stream outlives its tunnel": {
		in: begin().stream(second, 80*second, 81*second, "").expect(10*second, "paris#1", false).
			expect(90*second, "paris#1", true).finish(),
		want: []string{RuleUnwanted},
	},
	"a stream outlives its tunnel, and what ends tunnels is broken": {
		in: begin().stream(second, 80*second, 81*second, "").expect(10*second, "paris#1", false).
			kill("controller/0", 11*second, 61*second).expect(90*second, "paris#1", true).finish(),
	},
	"a stream outlives a tunnel that is moved": {
		in: begin().text("0s 1s move paris", 9*second, 95*second).stream(second, 80*second, 81*second, "").
			expect(10*second, "paris#1", false).expect(90*second, "paris#1", true).finish(),
	},
	"what should not answer does, and the machine was late for a hundredth of the time": {
		in: begin().late(50*second, 2*second).expect(10*second, "paris#1", false).ask(80*second, second, good).
			expect(90*second, "paris#1", true).finish(),
		want: []string{RuleUnwanted},
	},
	"an edge of an earlier Tunnel carries a request": {
		in:   begin().retired(10*second).ask(80*second, second, good).finish(),
		want: []string{RuleUnwanted},
	},
	"an edge of an earlier Tunnel carries a request at first": {
		in: begin().retired(10*second).ask(40*second, second, good).finish(),
	},
	"a new edge in the place of one of an earlier Tunnel": {
		in: begin().retired(10*second).add(Entry{At: 12 * second, Kind: KindPlaced, Edge: "10.0.0.1"}).
			ask(80*second, second, good).finish(),
	},
	"a revocation is confirmed late": {
		in:   begin().revoking(10*second).revoked("edge-1", 51*second).finish(),
		want: []string{RuleRevoked},
	},
	"a revocation is confirmed late while what confirms it is broken": {
		in: begin().revoking(10*second).kill("gateway/1/agent", 20*second, 30*second).revoked("edge-1", 51*second).
			finish(),
	},
	"a Tunnel is not ready in the end": {
		in:   begin().readyNow(false).finish(),
		want: []string{RuleNotReady},
	},
	"a Tunnel is ready in the end": {in: begin().readyNow(true).finish()},
	"a Tunnel is not ready in the end, and nothing answers": {
		in:   begin().readyNow(false).final(Entry{Error: "reset"}).add(Entry{Kind: KindFinish}),
		want: []string{RuleSettled},
	},
	"a program crashes": {
		in:   begin().add(Entry{Kind: KindCrashed, Name: "controller.log", Text: "a panic"}).finish(),
		want: []string{RuleCrash},
	},
	"a stream into a network breaks while the agent of a gateway is killed": {
		in:   begin().kill("gateway/1/agent", 90*second, 101*second).networkStream(second).finish(),
		want: []string{RuleCalm},
	},
	"a stream into a network breaks that began while the agent of a gateway was killed": {
		in: begin().kill("gateway/1/agent", 90*second, 101*second).networkStream(95 * second).finish(),
	},
	"a Cluster arrives where it was moved": {in: begin().moved(10*second, 39*second).finish()},
	"a Cluster arrives late": {
		in:   begin().moved(10*second, 41*second).finish(),
		want: []string{RuleMoved},
	},
	"a Cluster arrives late because all are late": {
		in:    begin().late(20*second, 2*second).moved(10*second, 41*second).finish(),
		voids: []string{RuleMoved},
	},
	"a Cluster arrives late after a fault of its edge": {
		in: begin().step(12*second, 20*second).moved(10*second, 49*second).finish(),
	},
	"a Cluster arrives late after a fault of another edge": {
		in:   begin().kill("oslo/0/envoy", 12*second, 20*second).moved(10*second, 49*second).finish(),
		want: []string{RuleMoved},
	},
	"a Cluster never arrives": {
		in:   begin().add(Entry{At: 10 * second, Kind: KindMoved, Cluster: "paris" + Second}).finish(),
		want: []string{RuleMoved},
	},
	"another Cluster arrives": {
		in: begin().add(Entry{At: 10 * second, Kind: KindMoved, Cluster: "paris" + Second},
			Entry{At: 12 * second, Kind: KindArrived, Cluster: "paris"}).finish(),
		want: []string{RuleMoved},
	},
	"a request fails in the second installation because of a fault of the edge": {
		in: begin().step(99*second, 101*second).inSecond("reset").finish(),
	},
	"a request fails in the second installation, and a gateway of the first one is broken": {
		in:   begin().kill("gateway/1/agent", 99*second, 101*second).inSecond("reset").finish(),
		want: []string{RuleCalm},
	},
	"a request fails before a Cluster is moved": {
		in:   begin().transferred().ask(75*second, second, Entry{Error: "reset"}).arrived(),
		want: []string{RuleCalm},
	},
	"a request fails while a Cluster is moved": {
		in: begin().transferred().ask(85*second, second, Entry{Error: "reset"}).
			there(95*second, Entry{Error: "reset"}, "short").arrived(),
	},
	"a request fails where a Cluster has arrived": {
		in:   begin().transferred().there(101*second, Entry{Error: "reset"}, "short").arrived(),
		want: []string{RuleCalm},
	},
	"a stream from before a move breaks after it": {
		in: begin().stream(second, 84*second, 85*second, "10.0.0.1").transferred().arrived(),
	},
	"a request fails after a Cluster has come back": {
		in: begin().transferred().expect(110*second, "paris#1", true).
			add(Entry{At: 112 * second, Kind: KindArrived, Cluster: "paris"}).
			ask(113*second, second, Entry{Error: "reset"}).there(950*second, good, Final).finish(),
		want: []string{RuleCalm},
	},
	"an unknown entry": {
		in:   begin().add(Entry{Kind: "else"}).finish(),
		want: []string{RuleHistory},
	},
	"memory grows": {
		in:   begin().usage(false, Entry{Memory: 50 << 20}).usage(true, Entry{Memory: 200 << 20}).finish(),
		want: []string{RuleUsage},
	},
	"memory varies": {
		in: begin().usage(false, Entry{Memory: 50 << 20}).usage(true, Entry{Memory: 90 << 20}).finish(),
	},
	"open files grow": {
		in:   begin().usage(false, Entry{Files: 20}).usage(true, Entry{Files: 400}).finish(),
		want: []string{RuleUsage},
	},
	"open files of an Envoy grow by those of its lanes": {
		in: begin().add(Entry{Kind: KindUsage, Process: "edge-envoy", Files: 20},
			Entry{Kind: KindUsage, Process: "edge-envoy", After: true, Files: 600}).finish(),
	},
	"open files vary": {
		in: begin().usage(false, Entry{Files: 20}).usage(true, Entry{Files: 40}).finish(),
	},
	"goroutines grow": {
		in:   begin().usage(false, Entry{Goroutines: 40}).usage(true, Entry{Goroutines: 400}).finish(),
		want: []string{RuleUsage},
	},
	"goroutines vary": {
		in: begin().usage(false, Entry{Goroutines: 40}).usage(true, Entry{Goroutines: 60}).finish(),
	},
	"the state folder of a gateway grows": {
		in:   begin().disk("gateway-agent", 10<<10, 24<<20).finish(),
		want: []string{RuleUsage},
	},
	"the state folder of a gateway varies": {in: begin().disk("gateway-agent", 10<<10, 16<<20).finish()},
	"the state folder of an edge grows": {
		in:   begin().disk("edge-agent", 10<<10, 2<<20).finish(),
		want: []string{RuleUsage},
	},
	"the state folder of an edge varies": {in: begin().disk("edge-agent", 10<<10, 200<<10).finish()},
	"objects are left behind": {
		in:   begin().usage(false, Entry{Objects: 90}).usage(true, Entry{Objects: 140}).finish(),
		want: []string{RuleUsage},
	},
	"objects of one more Cluster": {
		in: begin().usage(false, Entry{Objects: 90}).usage(true, Entry{Objects: 100}).finish(),
	},
	"a process that was not there before": {
		in:   begin().usage(true, Entry{Memory: 1}).finish(),
		want: []string{RuleHistory},
	},
	"a log contains a key": {
		in:   begin().add(Entry{Kind: KindSecret, Name: "edge.log", Text: "a key"}).finish(),
		want: []string{RuleSecret},
	},
	"nothing at all, which proves nothing": {want: []string{RuleHistory, RuleHistory, RuleHistory, RuleHistory}},
	"a history without requests, which is no": {
		in:   story{{Kind: KindRun, Settle: second}, {Kind: KindDenied}, {Kind: KindFinish}},
		want: []string{RuleHistory},
	},
}

func TestCheck(t *testing.T) {
	for name, tt := range stories {
		t.Run(name, func(t *testing.T) {
			var rules, voids []string
			for _, v := range Check(tt.in) {
				if v.Void {
					voids = append(voids, v.Rule)
				} else {
					rules = append(rules, v.Rule)
				}
			}
			if !slices.Equal(rules, tt.want) || !slices.Equal(voids, tt.voids) {
				t.Errorf("violations %q, void %q, want %q and %q", rules, voids, tt.want, tt.voids)
			}
		})
	}
}

// TestOutagesOutlastTheirBound: the kept outages are long enough to find each Tunnel and network that stays ready.
func TestOutagesOutlastTheirBound(t *testing.T) {
	h, found := begin(), map[string]bool{}
	for _, s := range scheduleFile(t, "testdata/long/outages.txt") {
		name, _, _ := strings.Cut(s.Target, "/")
		found[name] = false
		h = h.text(s.String(), s.At, s.End()).add(
			Entry{Kind: KindExpect, Cluster: name, Answer: name, Up: true, Settled: true},
			Entry{Kind: KindReady, Cluster: name, Up: true})
		for at := s.At; at < s.End(); at += 5 * second {
			h = h.ask(at, second, Entry{Error: "it does not answer"})
			h[len(h)-2].Cluster = name
		}
	}
	for _, v := range Check(h) {
		if name, _, _ := strings.Cut(v.What, ","); v.Rule == RuleReady {
			found[name] = true
		}
	}
	for name, is := range found {
		if !is {
			t.Errorf("it is not found that %s stays ready", name)
		}
	}
}

// TestEveryRuleHasAStory checks that each rule is broken by a story above.
func TestEveryRuleHasAStory(t *testing.T) {
	broken := map[string]bool{}
	for _, tt := range stories {
		for _, rule := range tt.want {
			broken[rule] = true
		}
	}
	for _, rule := range []string{
		RuleWrong, RuleRevoked, RuleSubject, RuleReady, RuleKubeconfig,
		RuleBound, RuleLost, RuleCalm, RuleSettled, RuleUnwanted, RuleUsage,
		RuleSecret, RuleHistory, RuleMoved, RuleStep, RuleNotReady, RuleCrash,
	} {
		if !broken[rule] {
			t.Errorf("no story breaks %q", rule)
		}
	}
}

func TestHistoriesCanBeReadAgain(t *testing.T) {
	var file bytes.Buffer
	r := NewRecorder(&file)
	r.Add(Entry{Kind: KindRun, Seed: 7, Settle: second})
	id, _ := r.Begin(Entry{Kind: KindAsk, Client: "short", Cluster: "paris", Path: path, Bound: bound})
	r.Add(Entry{Kind: KindAnswer, ID: id, Answer: "paris#1"})
	want, err := r.History()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadHistory(&file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
}

func TestReportSumsRuns(t *testing.T) {
	file := t.TempDir() + "/results"
	bad := begin().step(99*second, 110*second).ask(100*second, second, Entry{Error: "reset"}).
		ask(second, 6*second, good)
	for _, r := range []Result{
		Summarize("random", begin().ask(second, second, good).finish()),
		Summarize("single", bad.finish()),
	} {
		if err := r.Append(file); err != nil {
			t.Fatal(err)
		}
	}
	text, err := readReport(file)
	const want = "2 runs, 0.56 hours, 1 seeds, 1 steps, 1 faults, 5 requests, 1 failed, 0 without an excuse, " +
		"0 void\n" +
		"violations of \"request exceeds its bound\": 1\n"
	if err != nil || !strings.HasPrefix(text, want) || !strings.Contains(text, "\nfirst attempt: ") {
		t.Errorf("the report is %q, %v, want %q and service levels", text, err, want)
	}
	for _, part := range []string{"\nof random: 1 runs, 0.28 hours", "\nof single: 1 runs, 0.28 hours"} {
		if !strings.Contains(text, part) {
			t.Errorf("the report is %q, want a part %q", text, part)
		}
	}
	if _, err := Report(strings.NewReader("{")); err == nil {
		t.Error("a broken line is accepted")
	}
}

func readReport(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	return Report(bytes.NewReader(data))
}
