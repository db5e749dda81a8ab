package xds

import (
	"slices"
	"strconv"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// job is the input of one response, as it was at one time.
type job struct {
	kind     int
	must     bool // be sent, even if it is empty
	known    []known
	requests uint64
	updates  uint64
	dial     envoy.EdgeDial
	made     resources
}

// pick returns the next job. It returns false if there is none; then the goroutine that sends must end.
func (e *edge) pick() (job, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.kinds {
		if k := &e.kinds[i]; !e.over && k.due() {
			j := job{
				kind: i, must: k.first, known: k.known, requests: k.requests,
				updates: e.updates, dial: e.dial, made: e.made,
			}
			k.stale, k.first = false, false
			if k.all {
				return j, true
			}
		}
	}
	e.sending = false
	if !slices.ContainsFunc(e.kinds[:], func(k kind) bool { return !k.asked }) {
		e.made = nil // the edge has requested all types
	}
	return job{}, false
}

// do computes a response, and the resources that the edge has after it. It returns nil if the tunnel has ended: then
// its streams are closed elsewhere.
func (j *job) do(s *Server, subject model.Subject) (*discoveryv3.DeltaDiscoveryResponse, []known, error) {
	s.limits.builds <- struct{}{}
	defer func() { <-s.limits.builds }()
	if j.made == nil {
		rendering, cluster, ok := s.servedTo(subject)
		if !ok {
			return nil, nil, nil
		}
		j.made = s.edgeResources(rendering, cluster, subject.Node, j.dial)
	}
	return difference(edgeOrder[j.kind], j.made[edgeOrder[j.kind]], j.known)
}

// commit records a computed response as sent, and returns it. It returns nil if nothing is to be sent now; there may
// be another job.
func (e *edge) commit(
	j job, response *discoveryv3.DeltaDiscoveryResponse, now []known,
) *discoveryv3.DeltaDiscoveryResponse {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.kinds[j.kind]
	if e.over || response == nil {
		return nil
	}
	if k.requests != j.requests { // a newer request has changed what the edge has: compute the response again
		k.stale, k.first = true, k.first || j.must
		return nil
	}
	if e.updates == j.updates {
		e.made = j.made // reuse the resources of the other type
	}
	k.known = now
	if len(response.GetResources())+len(response.GetRemovedResources()) == 0 && !j.must {
		return nil
	}
	e.nonce++
	response.Nonce = strconv.FormatUint(e.nonce, 10)
	response.SystemVersionInfo = response.GetNonce()
	k.waiting = false
	return response
}
