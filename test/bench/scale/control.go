package scale

import (
	"context"
	"fmt"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
)

// control opens the control channels of as many edges as the sockets allow, with their resources and reports, because
// the xds-server stores some state for each. The edges connect to the xds-server directly: through the gateway each
// would take two sockets of its Envoy.
func (w *world) control(ctx context.Context, r *results, sockets int) error {
	edges := w.Fleet.Edges()
	edges = edges[:min(len(edges), sockets)]
	before, err := w.memoryOf("xds-server")
	if err != nil {
		return err
	}
	begin := time.Now()
	open, err := w.FollowAll(ctx, edges, 0)
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	if err != nil {
		return fmt.Errorf("opening %d control channels, %d are open: %w", len(edges), len(open), err)
	}
	r.add("edges with a control channel", "", float64(len(open)))
	r.add("new control channels", "1/s", float64(len(open))/time.Since(begin).Seconds())
	if err := w.memory(r, "with control channels"); err != nil {
		return err
	}
	after, err := w.memoryOf("xds-server")
	if err != nil {
		return err
	}
	each := (after - before) / float64(len(open))
	r.of("xds-server", "memory of a control channel", "KB", each*1e3)
	// Some may have no control channel, because the process has too few sockets.
	r.of("xds-server", "memory if all had a control channel", "MB", before+each*float64(r.size))
	seconds := r.out.Rounds(20, 10)
	return w.usage(
		ctx, r, "a second with control channels", seconds, nil,
		func() error { return retry.Sleep(ctx, time.Duration(seconds)*time.Second) },
	)
}
