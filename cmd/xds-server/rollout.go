package main

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
)

// announceInterval is the time between announcements to the controller. It is much shorter than the time for which a
// phase is observed.
const announceInterval = time.Second

// announce sends the controller the profile of this server's configuration, and the state of the nodes, until ctx
// ends. It announces nothing before the server serves, so that no rollout begins because of a server without nodes.
func (s *server) announce(ctx context.Context, hub *reporthub.Hub) error {
	for {
		if s.ads.Published() {
			hub.SetProfiles(s.ads.Profiles())
		}
		if retry.Sleep(ctx, announceInterval) != nil {
			return nil
		}
	}
}
