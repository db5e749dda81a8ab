package hub

import (
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Boot stores the report of a machine of a tunnel, whose token the caller has verified, and returns whether a
// controller watches. An error is a gRPC status.
func (h *Hub) Boot(id string, r *reportv1.BootReport) (watched bool, err error) {
	if err := report.CheckBoot(r); err != nil {
		return false, err
	}
	clean := report.CleanBoot(r)
	host := report.HostOf(clean.GetMachine())
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boots.Put(id, host, clean, h.now()) {
		h.changed(changeKey{kind: kindBoot, pair: pair{host, id}})
	}
	return len(h.watchers) > 0, nil
}
