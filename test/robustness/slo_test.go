package robustness

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// of adds a request for paris by any path.
func (s story) of(path string, at, took time.Duration, answer Entry) story {
	id := int64(len(s))
	answer.At, answer.Kind, answer.ID = at+took, KindAnswer, id
	return s.add(Entry{At: at, Kind: KindAsk, ID: id, Client: "short", Cluster: "paris", Path: path, Bound: bound}, answer)
}

// idling adds a request of a connection for paris that was idle before.
func (s story) idling(at, took time.Duration, answer Entry) story {
	s = s.ask(at, took, answer)
	s[len(s)-2].Client = Idle
	return s
}

func TestMeasure(t *testing.T) {
	good, bad := Entry{Answer: "paris#1", Edge: "10.0.0.1"}, Entry{Error: "reset"}
	const one, two = "paris by sni through gateway-1", "paris by sni through gateway-2"
	for name, tc := range map[string]struct {
		in   story
		want SLO
	}{
		"requests are answered": {
			in: begin().ask(100*second, second, good).ask(102*second, second, good), want: SLO{Attempts: Attempts{Requests: 2}},
		},
		"requests before everything has to work do not count": {in: begin().ask(10*second, second, bad)},
		"a retry succeeds": {
			in:   begin().ready(0, false).ask(100*second, second, bad).of(two, 102*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 2, First: 1}, Status: []float64{0}},
		},
		"a retry fails": {
			in:   begin().ask(100*second, second, bad).of(two, 102*second, second, bad).ask(104*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 3, First: 2, Retried: 1}},
		},
		"there is no retry": {
			in:   begin().ask(100*second, second, bad),
			want: SLO{Attempts: Attempts{Requests: 1, First: 1, Retried: 1}},
		},
		"a fault breaks nothing": {
			in:   begin().step(100*second, 110*second).ask(101*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 1}, Recovery: []float64{0}},
		},
		"a fault of one of two edges counts from its begin": {
			in:   begin().step(100*second, 110*second).ask(101*second, 2*second, bad).ask(104*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 2, First: 1}, Recovery: []float64{3}},
		},
		"a fault of a gateway counts from its begin at other gateways": {
			in: begin().freeze("gateway/0/envoy", 100*second, 110*second).of(one, 104*second, second, bad).
				of(one, 106*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 2, First: 1}, Recovery: []float64{5}},
		},
		"and from its end at its own": {
			in: begin().freeze("gateway/1/envoy", 100*second, 110*second).of(one, 104*second, second, bad).
				of(one, 111*second, second, bad).of(one, 113*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 3, First: 2, Retried: 1}, Recovery: []float64{2}},
		},
		"but from its begin if it is killed, because its agent starts it again": {
			in: begin().kill("gateway/1/envoy", 100*second, 110*second).of(one, 101*second, second, bad).
				of(one, 104*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 2, First: 1}, Recovery: []float64{2}},
		},
		"an idle connection counts with its begin": {
			in:   begin().step(100*second, 110*second).idling(102*second, 12*second, bad).idling(116*second, 12*second, good),
			want: SLO{Attempts: Attempts{Requests: 2, First: 1}, Recovery: []float64{2}},
		},
		"what fails when everything had to work again is of another fault": {
			in:   begin().step(100*second, 110*second).ask(169*second, 2*second, bad).ask(173*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 2, First: 1}, Recovery: []float64{0}},
		},
		"faults of one workload cluster overlap": {
			in: begin().step(100*second, 110*second).kill("paris/1/envoy", 120*second, 121*second).
				ask(101*second, second, bad).ask(103*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 2, First: 1}, Overlapped: 2},
		},
		"faults that may break nothing have no recovery": {
			in:   begin().kill("controller/0", 100*second, 110*second).ask(101*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 1}},
		},
		"a revocation is confirmed": {
			in:   begin().ask(90*second, second, good).revoking(100*second).revoked("edge-1", 102*second),
			want: SLO{Attempts: Attempts{Requests: 1}, Confirmation: []float64{2}, Revocation: []float64{0}},
		},
		"a revocation is confirmed while what confirms it is broken": {
			in: begin().ask(90*second, second, good).kill("xds-server/0", 101*second, 103*second).revoking(100*second).
				revoked("edge-1", 104*second),
			want: SLO{Attempts: Attempts{Requests: 1}, Revocation: []float64{0}},
		},
		"an edge carries something after its revocation": {
			in: begin().revoked("edge-a", 100*second).ask(101*second, second, good).ask(103*second, second,
				Entry{Answer: "paris#1", Edge: "10.0.0.2"}),
			want: SLO{Attempts: Attempts{Requests: 2}, Revocation: []float64{1}},
		},
		"an edge carries a stream after its revocation": {
			in: begin().ask(90*second, second, good).stream(95*second, 103*second, 110*second, "10.0.0.1").
				revoked("edge-a", 100*second),
			want: SLO{Attempts: Attempts{Requests: 1}, Revocation: []float64{3}},
		},
		"a request arrives through an edge after its revocation": {
			in:   begin().ask(90*second, second, good).revoked("edge-a", 100*second).carried(102*second, "10.0.0.1"),
			want: SLO{Attempts: Attempts{Requests: 1}, Revocation: []float64{2}},
		},
		"and nothing": {
			in:   begin().ask(90*second, second, good).revoked("edge-a", 100*second),
			want: SLO{Attempts: Attempts{Requests: 1}, Revocation: []float64{0}},
		},
		"a Tunnel is ready while all requests fail": {
			in:   begin().ready(0, true).failing(100*second, 120*second).ready(112*second, false).ask(121*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 5, First: 4, Retried: 3}, Status: []float64{12}},
		},
		"but not while what reports is broken": {
			in: begin().ready(0, true).kill("xds-server/0", 90*second, 91*second).failing(100*second, 120*second).
				ask(121*second, second, good),
			want: SLO{Attempts: Attempts{Requests: 5, First: 4, Retried: 3}},
		},
	} {
		tc.want.Redundant = tc.want.Attempts // paris has two edges
		if diff := cmp.Diff(tc.want, Measure(tc.in.finish())); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestOnlyTwoEdgesAreRedundant(t *testing.T) {
	in := begin().ask(100*second, second, Entry{Error: "reset"}).add(Entry{Kind: KindExpect, Cluster: "oslo", Up: true}).
		ask(102*second, second, Entry{Error: "reset"})
	in[len(in)-2].Cluster = "oslo"
	got := Measure(in.finish())
	if got.Requests != 2 || got.Redundant != (Attempts{Requests: 1, First: 1, Retried: 1}) {
		t.Errorf("of a request to paris and one to oslo: %+v", got)
	}
}

func TestReportOfServiceLevels(t *testing.T) {
	s := SLO{Attempts: Attempts{Requests: 1000, First: 9}}
	s.add(SLO{
		Attempts: Attempts{Requests: 1000, First: 1, Retried: 1}, Redundant: Attempts{Requests: 500, First: 1},
		Recovery: []float64{3, 1, 2}, Revocation: []float64{0.25}, Overlapped: 4,
	})
	want := strings.Join([]string{
		"first attempt: 99.5000 % of 2000 at 100 faults per hour, 99.9950 % at one",
		"with one retry: 99.9500 % of 2000 at 100 faults per hour, 99.9995 % at one",
		"first attempt, two edges: 99.8000 % of 500 at 10 faults per hour, 99.9800 % at one",
		"with one retry, two edges: 100.0000 % of 500 at 10 faults per hour, 100.0000 % at one",
		"recovery after a fault: p50 2.000 s, p99 3.000 s, p99.9 3.000 s, max 3.000 s of 3, 4 faults overlapped others",
		"revocation confirmed: not measured",
		"revocation, then: p50 0.250 s, p99 0.250 s, p99.9 0.250 s, max 0.250 s of 1",
		"wrongly ready: not measured",
		"",
	}, "\n")
	if diff := cmp.Diff(want, s.Report(100, 10)); diff != "" {
		t.Error(diff)
	}
	if got := (SLO{}).Report(100, 100); got != "service levels: not measured\n" {
		t.Errorf("without requests: %q", got)
	}
}
