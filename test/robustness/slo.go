package robustness

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// SLO are the figures of one history for docs/slo.md. Durations are seconds with the precision of a millisecond. They
// are what clients observe, so a duration is as precise as requests are frequent.
type SLO struct {
	Attempts
	// Redundant are those of them to workload clusters with two edges.
	Redundant Attempts `json:"redundant,omitzero"`
	// Recovery has, for each fault that may break requests and that no other step for the same target overlaps, the time
	// until the last request that it broke has failed; a connection that was idle until it failed counts with its begin,
	// because others worked meanwhile or count themselves. The time begins with the fault for requests that have another
	// way, or if what it breaks can work again before it ends, and with its end for those that have none: of a workload
	// cluster with one edge, and to the gateway of the fault. A request counts if it ended before everything had to work
	// again, because the next fault may break others.
	Recovery []float64 `json:"recovery,omitempty"`
	// Overlapped faults have no time of recovery.
	Overlapped int `json:"overlapped"`
	// Confirmation has, for each revocation while nothing that confirms it was broken, the time until it was confirmed.
	Confirmation []float64 `json:"confirmation,omitempty"`
	// Revocation has, for each confirmed revocation, the time until the edge last carried something.
	Revocation []float64 `json:"revocation,omitempty"`
	// Status has, for each time in which all requests to a workload cluster failed, for how long its Tunnel was Ready
	// nevertheless; 0: it was not. Times in which what reports is broken are left out.
	Status []float64 `json:"status,omitempty"`
}

// Attempts are requests with a bound to workload clusters that should have had a tunnel for as long as everything may
// take to settle. First failed, and Retried failed together with the next request of the same kind of traffic to the
// same workload cluster, by any gateway and mode, or had none.
type Attempts struct {
	Requests int `json:"requests"`
	First    int `json:"first"`
	Retried  int `json:"retried"`
}

// Measure returns the figures of a history.
func Measure(history []Entry) SLO { return newRecord(history).measure() }

func (r *record) measure() SLO {
	var s SLO
	ended := r.ended()
	s.countRequests(r, ended)
	for _, step := range r.steps {
		if parsed, err := Parse(step.text); err != nil || len(parsed) != 1 || !parsed[0].Action.IsFault() ||
			step.breaks == "" {
			continue
		}
		if r.overlapped(step) {
			s.Overlapped++
			continue
		}
		s.Recovery = append(s.Recovery, seconds(r.recovery(step, ended)))
	}
	for edge, spans := range r.revoked {
		for _, revoked := range spans {
			s.Revocation = append(s.Revocation, seconds(r.carriedFor(revoked, edge)))
		}
	}
	slices.Sort(s.Revocation)
	for _, v := range r.proven {
		if took := v.to - v.from; r.sighted(v.cluster, v.from, v.to) == took {
			s.Confirmation = append(s.Confirmation, seconds(took))
		}
	}
	s.Status = r.wronglyReady(ended)
	return s
}

// request is a request with a bound that has ended.
type request struct{ ask, answer Entry }

// ended returns the requests with a bound that have ended, except the final ones, by their begin.
func (r *record) ended() []request {
	var all []request
	for _, ask := range r.asks {
		if answer, done := r.answers[ask.ID]; done && ask.Bound > 0 && ask.Client != Final {
			all = append(all, request{ask, answer})
		}
	}
	slices.SortStableFunc(all, func(a, b request) int { return cmp.Compare(a.ask.At, b.ask.At) })
	return all
}

// byEnd returns requests in the order of their ends.
func byEnd(requests []request) []request {
	all := slices.Clone(requests)
	slices.SortStableFunc(all, func(a, b request) int { return cmp.Compare(a.answer.At, b.answer.At) })
	return all
}

// wanted reports whether the workload cluster of a request should have had a tunnel for long enough.
func (r *record) wanted(q request) bool {
	since, up := r.up(q.ask.Cluster, q.ask.At)
	still, ends := r.up(q.ask.Cluster, q.answer.At)
	return up && ends && since == still && r.due(q.ask.Cluster, since) <= q.ask.At
}

func (s *SLO) countRequests(r *record, ended []request) {
	type traffic struct{ client, cluster string }
	later := map[traffic][]request{}
	for _, q := range ended {
		key := traffic{q.ask.Client, q.ask.Cluster}
		later[key] = append(later[key], q)
	}
	for _, q := range ended {
		if !r.wanted(q) {
			continue
		}
		one := Attempts{Requests: 1}
		if q.answer.Error != "" {
			one.First = 1
			next := later[traffic{q.ask.Client, q.ask.Cluster}]
			i, _ := slices.BinarySearchFunc(next, q.answer.At, func(n request, at time.Duration) int {
				return cmp.Compare(n.ask.At, at)
			})
			if i == len(next) || next[i].answer.Error != "" {
				one.Retried = 1
			}
		}
		s.Attempts.add(one)
		if Inventory[q.ask.Cluster] > 1 {
			s.Redundant.add(one)
		}
	}
}

// overlapped reports whether another step may have broken the same requests until they had to work again.
func (r *record) overlapped(of span) bool {
	until := of.end + r.run.Settle
	return slices.ContainsFunc(r.steps, func(s span) bool {
		return s.id != of.id && s.breaks != "" && s.begin <= until && (s.open || s.end+r.run.Settle >= of.begin) &&
			(s.breaks == of.breaks || s.relays || of.relays)
	})
}

// recovery returns the time of SLO.Recovery.
func (r *record) recovery(of span, ended []request) (longest time.Duration) {
	for _, q := range ended {
		broken := q.ask.Cluster == of.breaks || of.relays
		if !broken || q.answer.Error == "" || q.answer.At < of.begin || q.answer.At > of.end+r.run.Settle || !r.wanted(q) {
			continue
		}
		from := of.begin
		if !of.brief && (strings.HasSuffix(q.ask.Path, of.breaks) || !of.relays && Inventory[of.breaks] < 2) {
			from = of.end
		}
		failed := q.answer.At
		if q.ask.Client == Idle {
			failed = q.ask.At
		}
		longest = max(longest, failed-from)
	}
	return longest
}

// carriedFor returns how long after its revocation an edge last carried something: a request, a part of a stream, or
// what has arrived at the workload apiserver without an answer to the client.
func (r *record) carriedFor(revoked span, edge string) (longest time.Duration) {
	for _, ask := range r.asks {
		answer := r.answers[ask.ID]
		carried := max(ask.At, answer.Last)
		if answer.Edge == edge && answer.Answer != "" && carried > revoked.begin &&
			(revoked.open || answer.At < revoked.end) {
			longest = max(longest, carried-revoked.begin)
		}
	}
	for _, e := range r.carried {
		if e.Edge == edge && e.At > revoked.begin && (revoked.open || e.At < revoked.end) {
			longest = max(longest, e.At-revoked.begin)
		}
	}
	return longest
}

// wronglyReady returns the times of SLO.Status.
func (r *record) wronglyReady(ended []request) (all []float64) {
	failing := map[string]*[2]time.Duration{} // the begin of the first request and the end of the last one that failed
	end := func(cluster string) {
		if f := failing[cluster]; f != nil && r.sighted(cluster, f[0], f[1]) == f[1]-f[0] && len(r.ready[cluster]) > 0 {
			all = append(all, seconds(r.readyFor(cluster, f[0], f[1])))
		}
		delete(failing, cluster)
	}
	for _, q := range byEnd(ended) {
		switch f := failing[q.ask.Cluster]; {
		case q.answer.Error == "":
			end(q.ask.Cluster)
		case !r.wanted(q): // it may fail
		case f == nil:
			failing[q.ask.Cluster] = &[2]time.Duration{q.ask.At, q.answer.At}
		default:
			f[1] = q.answer.At
		}
	}
	for cluster := range failing {
		end(cluster)
	}
	slices.Sort(all)
	return all
}

// readyFor returns for how long a Tunnel was Ready between two times.
func (r *record) readyFor(cluster string, from, to time.Duration) (sum time.Duration) {
	ready, since := false, from
	for _, e := range r.ready[cluster] {
		at := min(max(e.At, from), to)
		if ready {
			sum += at - since
		}
		ready, since = e.Up, at
	}
	if ready {
		sum += to - since
	}
	return sum
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

func (a *Attempts) add(other Attempts) {
	a.Requests += other.Requests
	a.First += other.First
	a.Retried += other.Retried
}

// add adds the figures of another history.
func (s *SLO) add(other SLO) {
	s.Attempts.add(other.Attempts)
	s.Redundant.add(other.Redundant)
	s.Overlapped += other.Overlapped
	s.Recovery = append(s.Recovery, other.Recovery...)
	s.Confirmation = append(s.Confirmation, other.Confirmation...)
	s.Revocation = append(s.Revocation, other.Revocation...)
	s.Status = append(s.Status, other.Status...)
}

// Report returns the figures as lines of a report, for runs with so many faults per hour, and so many in those that
// have Redundant. The share of failed requests is in proportion to the faults, so the lines also have it for one fault
// per hour; what operations and several faults together break is counted as if each fault did it.
func (s SLO) Report(faultsPerHour, redundantFaultsPerHour float64) string {
	if s.Requests == 0 {
		return "service levels: not measured\n"
	}
	return s.report("", faultsPerHour) + s.Redundant.report(", two edges", redundantFaultsPerHour) +
		fmt.Sprintf("recovery after a fault: %s, %d faults overlapped others\n", distribution(s.Recovery), s.Overlapped) +
		fmt.Sprintf("revocation confirmed: %s\n", distribution(s.Confirmation)) +
		fmt.Sprintf("revocation, then: %s\n", distribution(s.Revocation)) +
		fmt.Sprintf("wrongly ready: %s\n", distribution(s.Status))
}

func (a Attempts) report(of string, faultsPerHour float64) string {
	if a.Requests == 0 {
		return ""
	}
	return fmt.Sprintf(
		"first attempt%[1]s: %[2]s\nwith one retry%[1]s: %[3]s\n", of, share(a.Requests, a.First, faultsPerHour),
		share(a.Requests, a.Retried, faultsPerHour),
	)
}

func share(all, failed int, faultsPerHour float64) string {
	part := float64(failed) / float64(all)
	text := fmt.Sprintf("%.4f %% of %d", 100*(1-part), all)
	if faultsPerHour > 1 {
		text += fmt.Sprintf(" at %.0f faults per hour, %.4f %% at one", faultsPerHour, 100*(1-part/faultsPerHour))
	}
	return text
}

func distribution(values []float64) string {
	if len(values) == 0 {
		return "not measured"
	}
	sorted := slices.Sorted(slices.Values(values))
	return fmt.Sprintf("p50 %.3f s, p99 %.3f s, p99.9 %.3f s, max %.3f s of %d", quantile(sorted, 0.5),
		quantile(sorted, 0.99), quantile(sorted, 0.999), sorted[len(sorted)-1], len(sorted))
}

// quantile returns the smallest of the sorted values that at least a share of them does not exceed.
func quantile(sorted []float64, share float64) float64 {
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
