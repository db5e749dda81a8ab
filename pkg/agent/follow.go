package agent

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/model"
)

// joinedInterval is the interval at which an agent reads the folder of joined tunnels. That costs one read of a small
// folder.
const joinedInterval = time.Second

// rejoins is the wait between attempts for a tunnel that could not be started, or whose membership failed.
var rejoins = retry.Backoff{Min: 2 * time.Second, Max: 2 * time.Minute}

// joined is a tunnel that this edge joined while it or an earlier agent ran.
type joined struct {
	name    string
	hash    string      // of the file
	startup string      // the settings that cannot change while it runs
	member  *membership // nil: it could not be started
	of      *membership // the membership of a bootstrap file of the command line for the same tunnel
	err     error       // why it could not be started
	cancel  context.CancelFunc
	ended   chan struct{}
	failed  error // why the membership ended; read only after ended is closed

	tries int       // consecutive failed attempts
	began time.Time // start of the membership
	again time.Time // time of the next attempt; zero: it has not failed
}

// wait sets the time of the next attempt.
func (j *joined) wait() {
	j.again = time.Now().Add(rejoins.Wait(j.tries))
	j.tries++
}

func (a *Agent) joinedRoot() string { return filepath.Join(a.config.StateDir, edge.JoinedFolder) }

// memberships returns all memberships in no particular order.
func (a *Agent) memberships() []*membership {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Clone(a.members)
	for _, j := range a.joined {
		if j.member != nil {
			all = append(all, j.member)
		}
	}
	return all
}

// followJoined runs the joined tunnels until ctx ends: it starts new ones and ends the ones that were left.
func (a *Agent) followJoined(ctx context.Context) {
	again := time.NewTicker(joinedInterval)
	defer again.Stop()
	var reasons retry.Reasons
	for {
		if err := a.updateJoined(ctx); err != nil && reasons.New(err) {
			a.log.Error("cannot update joined tunnels", "error", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			for _, j := range a.joined {
				j.end()
			}
			return
		}
	}
}

// updateJoined makes the running tunnels match the folder. Only followJoined calls it, so a.joined has a single
// writer.
func (a *Agent) updateJoined(ctx context.Context) error {
	names, err := a.joinedNames()
	if err != nil {
		return err
	}
	var keep []*joined
	before := map[string]*joined{}
	for _, j := range a.joined {
		there := slices.Contains(names, j.name)
		if there && !a.changed(j) && !j.due() {
			keep = append(keep, j)
			continue
		}
		a.leave(j, !there)
		before[j.name] = j
	}
	for _, name := range names {
		if !slices.ContainsFunc(keep, func(j *joined) bool { return j.name == name }) {
			keep = append(keep, a.newJoined(name, before[name]))
		}
	}
	a.mu.Lock()
	a.joined = keep
	a.mu.Unlock()
	var errs []error
	for _, j := range keep {
		a.begin(ctx, j)
		errs = append(errs, edge.WriteJoinedStatus(filepath.Join(a.joinedRoot(), j.name), j.status()))
	}
	return errors.Join(errs...)
}

// changed reports whether a file has changed so that its membership must restart. A new token alone is read when it is
// needed; if it is needed now, the membership restarts instead of waiting for its next attempt.
func (a *Agent) changed(j *joined) bool {
	file, hash, err := readJoined(filepath.Join(a.joinedRoot(), j.name+edge.JoinedSuffix))
	if err != nil || hash == j.hash {
		return false // what runs continues
	}
	if j.member == nil || file.StartupFields() != j.startup {
		return true
	}
	if _, err := j.member.store.Identity(); err != nil {
		return true
	}
	j.hash = hash
	return false
}

// due reports whether a failed membership must be started again.
func (j *joined) due() bool {
	if j.again.IsZero() && j.over() && j.failed != nil {
		if time.Since(j.began) > longLife {
			j.tries = 0
		}
		j.wait()
	}
	return !j.again.IsZero() && time.Now().After(j.again)
}

// over reports whether a membership was started and has ended.
func (j *joined) over() bool {
	if j.cancel == nil {
		return false
	}
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

// begin starts a membership unless it was started. Its failure does not affect others.
func (a *Agent) begin(ctx context.Context, j *joined) {
	if j.member == nil || j.cancel != nil {
		return
	}
	ctx, j.cancel = context.WithCancel(ctx)
	j.ended, j.began = make(chan struct{}), time.Now()
	a.log.Info("tunnel joined", "tunnel", j.name)
	go func() {
		defer close(j.ended)
		if err := j.member.run(ctx); err != nil && ctx.Err() == nil {
			j.failed = err
			j.member.log.Error("membership failed, restarting it", "error", err)
			j.member.status.SetTrouble(model.TroubleMembership, err.Error())
		}
	}()
}

// end stops a membership and waits for its end.
func (j *joined) end() {
	if j.cancel != nil {
		j.cancel()
		<-j.ended
		j.cancel = nil
	}
}

// leave ends a membership and removes its resources and secrets from Envoy. If it is for good, it also removes the
// key and releases its node name.
func (a *Agent) leave(j *joined, forGood bool) {
	j.end()
	if j.member != nil {
		j.member.withdraw()
	}
	if forGood {
		a.remove(j.name)
	}
}

// status returns the status of a file.
func (j *joined) status() edge.JoinedStatus {
	s := edge.JoinedStatus{File: j.hash}
	m := j.member
	if j.of != nil {
		m = j.of
	}
	switch {
	case j.err != nil:
		s.Error = j.err.Error()
	case m != nil:
		now := m.status.State()
		s.Node, s.Connected, s.Error = now.Node, now.Connected, now.LastError
	}
	return s
}
