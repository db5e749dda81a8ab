package main

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
)

// announceInterval is how soon the controller hears of what nodes make of a profile: well below the time that it
// watches.
const announceInterval = time.Second

// announce tells the controller what this server is configured for, and what nodes make of a rollout, until ctx ends.
// Before all objects are read nothing is announced: no rollout begins on the word of a server that serves nobody.
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
