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
	boot := report.NewBoot(report.HostOf(clean.GetMachine()), clean, h.now())
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boots.Put(id, boot) {
		h.changed(changeKey{kind: kindBoot, pair: pair{boot.Host, id}})
	}
	return len(h.watchers) > 0, nil
}
