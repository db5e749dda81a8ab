package agent

import (
	"context"
	"fmt"

	"github.com/fairlead/fairlead/pkg/agent/envoyproc"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/model"
)

// supervise keeps Envoy running until ctx ends, and then drains and stops it. When work ends, or the agent is told to
// leave, Envoy continues.
func (a *Agent) supervise(ctx, work context.Context) error {
	e := &envoyproc.Envoy{Config: a.config.process(), Admin: a.config.admin(), Log: a.log, Events: envoyproc.Events{
		Starting: a.envoyStarts, Began: a.envoyBegan, Ended: a.envoyEnded, Stopped: a.envoyStopped, Ran: a.xds.Ran,
		Stable: a.envoyStable, Draining: a.envoy.SetDraining,
	}, Replace: a.replace}
	e.Supervise(ctx, work, a.config.Leave)
	return nil
}

// replaceForDenial has the running Envoy replaced to close connections, and returns at once. It returns false if there
// is no Envoy.
func (a *Agent) replaceForDenial() bool {
	select {
	case a.replace <- struct{}{}:
	default:
		return false
	}
	a.eachStatus(func(s *status.Status) {
		s.SetTrouble(model.TroubleReplaced, "tunnels of revoked edges had to be closed, and the agent runs without NET_ADMIN")
	})
	return true
}

// envoyStarts empties the table of tunnels before a new Envoy starts.
func (a *Agent) envoyStarts() error {
	if a.gateway == nil {
		return nil
	}
	return a.gateway.Table.Fresh()
}

// envoyBegan records the result of an attempt to start or take over Envoy.
func (a *Agent) envoyBegan(err error) {
	a.figures.running.Store(err == nil)
	if err == nil {
		a.envoy.SetObtained()
	}
	a.eachStatus(func(s *status.Status) {
		if err != nil {
			s.SetTrouble(model.TroubleStart, err.Error())
		} else {
			s.ClearTrouble(model.TroubleStart)
		}
	})
}

// envoyEnded records that Envoy ended unexpectedly, and its tunnels with it.
func (a *Agent) envoyEnded(reason string, times int) {
	a.figures.running.Store(false)
	a.figures.exits.WithLabelValues().Inc()
	if a.gateway != nil {
		if err := a.gateway.Table.Fresh(); err != nil { // it is called again before the next Envoy starts
			a.log.Error("cannot remove tunnels of the ended Envoy from the table", "error", err)
		}
	}
	if !a.replacing.Swap(false) { // otherwise TroubleReplaced has the reason
		a.eachStatus(func(s *status.Status) { s.SetTrouble(model.TroubleEnvoy, fmt.Sprintf("%s, %d times", reason, times)) })
	}
	if a.xds.Crashed() {
		a.log.Error("Envoy crashed repeatedly with new configuration: restoring its last good configuration")
	}
}

// envoyStable records that Envoy has run for long enough since its previous end.
func (a *Agent) envoyStable() {
	a.eachStatus(func(s *status.Status) {
		s.ClearTrouble(model.TroubleEnvoy)
		s.ClearTrouble(model.TroubleReplaced)
	})
}

// envoyStopped records that Envoy was stopped.
func (a *Agent) envoyStopped() {
	a.figures.running.Store(false)
	a.xds.Ended()
}

func (a *Agent) eachStatus(do func(*status.Status)) {
	for _, m := range a.memberships() {
		do(m.status)
	}
}
