package agent

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/status"
)

// lookJoined is how often an agent looks for tunnels that it was given. It costs one reading of a small folder.
const lookJoined = time.Second

// rejoins is between attempts at a tunnel that could not be begun, or whose membership failed.
var rejoins = retry.Backoff{Min: 2 * time.Second, Max: 2 * time.Minute}

// joined is a tunnel that this edge was given while it ran, or an agent before it.
type joined struct {
	name   string
	hash   string      // of the file
	way    string      // what can't be changed while it runs
	member *membership // nil: it could not be begun
	of     *membership // that of a bootstrap file of the command line, which is of the same tunnel
	err    error       // why not
	cancel context.CancelFunc
	ended  chan struct{}
	failed error // what ended the membership; to be read when it has ended

	tries int       // in a row that failed
	began time.Time // the membership
	again time.Time // when to try again; zero: it has not failed
}

// wait sets when to try again.
func (j *joined) wait() {
	j.again = time.Now().Add(rejoins.Wait(j.tries))
	j.tries++
}

func (a *Agent) joinedRoot() string { return filepath.Join(a.config.StateDir, edge.JoinedFolder) }

// memberships are all, in no order that lasts.
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

// followJoined runs the tunnels that this edge was given, begins those that it is given, and ends those that are taken back, until
// ctx ends.
func (a *Agent) followJoined(ctx context.Context) {
	again := time.NewTicker(lookJoined)
	defer again.Stop()
	var reasons retry.Reasons
	for {
		if err := a.lookJoined(ctx); err != nil && reasons.New(err) {
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

// lookJoined brings what runs to what the folder has. Only followJoined calls it, so nobody else changes a.joined.
func (a *Agent) lookJoined(ctx context.Context) error {
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

// changed says whether a file is another one, so that what it began has to begin anew. A new token alone is read when it is
// needed; where it is needed now, waiting for the next attempt would be in vain.
func (a *Agent) changed(j *joined) bool {
	file, hash, err := readJoined(filepath.Join(a.joinedRoot(), j.name+edge.JoinedSuffix))
	if err != nil || hash == j.hash {
		return false // and what runs goes on
	}
	if j.member == nil || file.Way() != j.way {
		return true
	}
	if _, err := j.member.store.Identity(); err != nil {
		return true
	}
	j.hash = hash
	return false
}

// due says whether to try again what has failed.
func (j *joined) due() bool {
	if j.again.IsZero() && j.over() && j.failed != nil {
		if time.Since(j.began) > longLife {
			j.tries = 0
		}
		j.wait()
	}
	return !j.again.IsZero() && time.Now().After(j.again)
}

// over says whether a membership was begun and has ended.
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

// begin runs a membership, if it was not begun. What ends it is nobody else's trouble.
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
			j.member.status.SetTrouble(status.AboutMembership, err.Error())
		}
	}()
}

// end stops a membership, and waits until it has.
func (j *joined) end() {
	if j.cancel != nil {
		j.cancel()
		<-j.ended
		j.cancel = nil
	}
}

// leave ends a membership, and takes from Envoy what came by it. Where it was taken back its key goes too.
func (a *Agent) leave(j *joined, forGood bool) {
	j.end()
	if j.member != nil {
		if subject, err := j.member.current(); err == nil {
			a.xds.Forget(subject.Node)
		}
		if err := a.sds.Drop(j.member); err != nil {
			a.log.Error("cannot remove secrets from Envoy", "error", err)
		}
	}
	if forGood {
		a.remove(j.name)
	}
}

// status is what is said of a file.
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
