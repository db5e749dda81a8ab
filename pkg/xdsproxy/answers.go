package xdsproxy

import (
	"sync/atomic"

	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
)

// answers counts the ACKs and NACKs sent to the xds-servers.
type answers struct{ acks, nacks atomic.Uint64 }

func (a *answers) count(why *statusv1.Status) {
	if why != nil {
		a.nacks.Add(1)
	} else {
		a.acks.Add(1)
	}
}

// Answers returns the number of ACKs and NACKs sent to the xds-servers since the proxy was made.
func (r *Proxy) Answers() (acks, nacks uint64) { return r.answers.acks.Load(), r.answers.nacks.Load() }
