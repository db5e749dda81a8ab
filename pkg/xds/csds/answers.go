package csds

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
	"unique"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"

	"github.com/fairlead/fairlead/internal/printable"
)

const (
	// maxRefusals bounds the rejected resources of one type that are kept for one node, maxRefusal the bytes of a reason.
	maxRefusals, maxRefusal = 32, 1 << 10
	// maxAgent bounds the bytes of a version.
	maxAgent = 64
	// maxName bounds the bytes of a rejected resource's name, which is a DNS name with a short prefix.
	maxName = 512
)

// Answers records what a node answered about one resource type on one stream: names that await an answer, and
// rejections. Every other resource is accepted, so a stream without rejections keeps no names. The zero value is ready
// to use. It is safe for concurrent use.
type Answers struct {
	mu       sync.Mutex
	began    int64  // first request; all times here are in Unix ns; 0: none
	sent     int64  // last response; 0: none
	nonce    string // of the last response
	pending  []string
	refusals map[string]*refusals // by name; nil: none
	agent    unique.Handle[string]
}

// refusals are resources that were rejected together, each with its own version.
type refusals struct {
	versions map[string]string // by name
	why      string
	since    time.Time
}

// Sent records a response to the node. A rejected resource that is sent again awaits a new answer, and so do those that
// were rejected together with it: pkg/xdsproxy offers them to Envoy again.
func (a *Answers) Sent(r *discoveryv3.DeltaDiscoveryResponse, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent, a.nonce = now.UnixNano(), r.GetNonce()
	a.pending = make([]string, 0, len(r.GetResources())+len(r.GetRemovedResources()))
	for _, resource := range r.GetResources() {
		a.pending = append(a.pending, resource.GetName())
	}
	a.pending = append(a.pending, r.GetRemovedResources()...)
	for _, name := range a.pending {
		a.retry(name)
	}
}

// Rejects returns whether a resource is rejected, and has not been sent again since.
func (a *Answers) Rejects() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.refusals) > 0
}

// retry removes a rejection, and those that came together with it.
func (a *Answers) retry(name string) {
	if group := a.refusals[name]; group != nil {
		maps.DeleteFunc(a.refusals, func(_ string, other *refusals) bool { return other == group })
	}
}

// Received records a request of the node: an ACK, a NACK, or a subscription.
func (a *Answers) Received(r *discoveryv3.DeltaDiscoveryRequest, now time.Time) {
	detail := r.GetErrorDetail()
	var groups []*statusv3.ClientConfig // decoded without the lock, which lists of nodes wait for
	for _, packed := range detail.GetDetails()[:min(len(detail.GetDetails()), maxRefusals)] {
		group := &statusv3.ClientConfig{}
		if packed.UnmarshalTo(group) == nil {
			groups = append(groups, group)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.began == 0 {
		a.began = now.UnixNano()
	}
	if node := r.GetNode(); node != nil {
		a.agent = unique.Make(printable.Text(node.GetUserAgentVersion(), maxAgent))
	}
	if r.GetResponseNonce() == "" {
		return
	}
	names := a.pending
	if r.GetResponseNonce() == a.nonce {
		a.pending = nil
	} else {
		names = nil
	}
	if detail == nil {
		for _, name := range names {
			a.retry(name) // the NACK of an earlier version may have come after this one was sent
		}
		return
	}
	for _, group := range groups {
		a.refuse(group, now)
	}
	if len(groups) == 0 { // an agent that does not name the resources
		group := &refusals{versions: map[string]string{}, why: printable.Text(detail.GetMessage(), maxRefusal), since: now}
		for _, name := range names {
			a.add(name, "", group)
		}
	}
}

// refuse records resources that were rejected together.
func (a *Answers) refuse(said *statusv3.ClientConfig, now time.Time) {
	group := &refusals{versions: map[string]string{}, since: now}
	for _, r := range said.GetGenericXdsConfigs() {
		state := r.GetErrorState()
		group.why = cmp.Or(group.why, printable.Text(state.GetDetails(), maxRefusal))
		// By the node's clock, which may be wrong, but the time can't be in the future.
		if at := state.GetLastUpdateAttempt(); at != nil && at.CheckValid() == nil && at.AsTime().Before(group.since) {
			group.since = at.AsTime()
		}
		a.add(r.GetName(), printable.Text(state.GetVersionInfo(), maxAgent), group)
	}
}

// add records a rejected resource. The node chooses the name, which may be of no resource: it reaches the record of
// rollouts, events and logs.
func (a *Answers) add(name, version string, group *refusals) {
	name = printable.Text(name, maxName)
	if name == "" || a.refusals[name] == nil && len(a.refusals) >= maxRefusals {
		return
	}
	if a.refusals == nil {
		a.refusals = map[string]*refusals{}
	}
	a.refusals[name] = group
	group.versions[name] = version
}

// outcome is a copy of Answers at one time.
type outcome struct {
	asked    bool
	sent     time.Time // zero: nothing was sent
	pending  map[string]bool
	refusals map[string]*refusals // immutable
}

func (a *Answers) outcome() outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := outcome{asked: a.began != 0, pending: make(map[string]bool, len(a.pending)), refusals: maps.Clone(a.refusals)}
	if a.sent != 0 {
		o.sent = time.Unix(0, a.sent)
	}
	for _, name := range a.pending {
		o.pending[name] = true
	}
	return o
}

// agentVersion returns the version of the agent, and when its stream began; zero values: not recorded.
func (a *Answers) agentVersion() (version string, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.began != 0 {
		since = time.Unix(0, a.began)
	}
	if a.agent != (unique.Handle[string]{}) {
		version = a.agent.Value()
	}
	return version, since
}

// Rejected calls do with the name of each rejected resource, and the time of its first rejection.
func (a *Answers) Rejected(do func(name string, since time.Time)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, group := range a.refusals {
		do(name, group.since)
	}
}

// FirstRejection returns the first rejected resource by name, and the reason; empty: there is none.
func (a *Answers) FirstRejection() (name, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.refusals)) {
		return name, a.refusals[name].why
	}
	return "", ""
}
