package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// longLife is how long an identity must have been good for its end to be no reason to wait before the next one is asked for.
const longLife = 10 * time.Minute

// Between identities that end one after the other: each may use up a token.
var successions = retry.Backoff{Min: 10 * time.Second, Max: 5 * time.Minute}

// errOver says that the xds-server will never serve an identity again.
var errOver = errors.New("this identity is no longer valid")

// membership is one enrolment: an identity that is kept valid, and what is done with it.
type membership struct {
	role
	dir        string // its folder
	store      *certs.Store
	identities *identity.Renewer
	xds        *xdsproxy.Proxy
	admin      envoyadmin.Client // of the Envoy that all memberships share
	sds        *identity.SecretServer
	status     *status.Status
	figures    *figures
	log        *slog.Logger
	joined     string                            // its name, of one that was joined at run time
	parts      []func(ctx context.Context) error // what runs beside, whatever the identity

	subjects chan model.Subject // holds the newest that apply has seen

	mu       sync.Mutex
	subject  model.Subject // whose secrets Envoy has; zero: nobody's
	notAfter time.Time     // of that identity
	served   bool          // Envoy has got resources for it
}

// recover is called before Envoy can ask. It drops an identity that is of no use, and returns the upstream of which the xDS proxy may
// have resources.
func (m *membership) recover() []xdsproxy.Upstream {
	m.identities.ForgetForeign()
	subject, err := m.current()
	if err != nil {
		return nil
	}
	return []xdsproxy.Upstream{{Name: subject.Node, Check: m.Check(subject)}}
}

// current is whose identity the store has.
func (m *membership) current() (model.Subject, error) {
	current, err := m.store.Identity()
	if err != nil {
		return model.Subject{}, err
	}
	domain, _ := m.Control()
	return identity.ParseSubject(domain, current)
}

// run keeps the membership going until ctx ends.
func (m *membership) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range m.parts {
		group.Go(func() error { return part(ctx) })
	}
	group.Go(func() error { m.live(ctx); return nil })
	return group.Wait()
}

// live has one identity after the other.
func (m *membership) live(ctx context.Context) {
	for ends := 0; ctx.Err() == nil; {
		began := time.Now()
		err := m.liveOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longLife {
			ends = 0
		}
		if errors.Is(err, errOver) {
			m.reject(err)
		} else {
			m.log.Error("membership failed, retrying", "error", err)
			ends = max(ends, 1)
		}
		if ends > 0 {
			_ = retry.Sleep(ctx, successions.Wait(ends-1))
		}
		ends++
	}
}

// liveOnce keeps an identity valid and uses it, until ctx ends or the xds-server says that it is over.
func (m *membership) liveOnce(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	rotation := &certs.Rotation{Store: m.store, Renew: m.renew, Changed: m.apply, Written: m.written, Log: m.log}
	group.Go(func() error { return rotation.Run(ctx) })
	group.Go(func() error { return m.attend(ctx) })
	return group.Wait()
}

// reject ends an identity that is over: Envoy dials with it no more, and the next one has to be got by the credential, unless what
// ended it is taken back.
func (m *membership) reject(err error) {
	m.mu.Lock()
	subject := m.subject
	m.subject, m.notAfter, m.served = model.Subject{}, time.Time{}, false
	m.status.Reset()
	m.mu.Unlock()
	m.Over()
	m.log.Error("xds-server rejected this identity, enrolling again if the credential allows it", "node", subject.Node, "error", err)
	m.status.SetTrouble(status.AboutCertificate, err.Error())
	m.xds.Forget(subject.Node)
	if err := m.sds.Drop(m); err != nil {
		m.log.Error("cannot remove secrets from Envoy", "error", err)
	}
	m.identities.Reject()
	select {
	case <-m.subjects: // of the identity that is over
	default:
	}
}

// renew is Rotation.Renew, and keeps its trouble on record.
func (m *membership) renew(ctx context.Context) (certs.Identity, []byte, error) {
	identity, bundle, err := m.identities.Renew(ctx)
	switch {
	case err == nil:
		m.status.ClearTrouble(status.AboutCertificate)
	case ctx.Err() == nil:
		m.status.SetTrouble(status.AboutCertificate, err.Error())
	}
	return identity, bundle, err
}

// written is Rotation.Written.
func (m *membership) written(err error) {
	if err == nil {
		m.status.ClearTrouble(status.AboutDisk)
		return
	}
	m.status.SetTrouble(status.AboutDisk, "the new certificate is in use, but not on disk: "+err.Error())
}

// apply is Rotation.Changed: it gives Envoy the identity in the store. After an error it is called again.
func (m *membership) apply() error {
	identity, err := m.store.Identity()
	if err != nil {
		return err
	}
	subject, err := m.current()
	if err != nil {
		return err
	}
	if err := m.sds.Set(m, subject, identity, m.store.Bundle()); err != nil {
		return err
	}
	m.status.SetIdentity(subject, identity)
	m.mu.Lock()
	same := m.subject == subject
	// A connection that was made with a leaf which has expired is of no use, however long it lasts.
	expired := time.Now().After(m.notAfter)
	if !same {
		m.subject, m.served = subject, false
	}
	m.notAfter = identity.NotAfter()
	m.mu.Unlock()
	if same && !expired {
		return nil
	}
	m.recordConfiguration() // which may have something for it since long ago
	select {
	case <-m.subjects: // nobody needs it any more
	default:
	}
	m.subjects <- subject // has room: this is the only sender
	return nil
}

// attend is at the xds-server as whoever the identity is for, until ctx ends or that is over.
func (m *membership) attend(ctx context.Context) error {
	var subject model.Subject
	select {
	case subject = <-m.subjects:
	case <-ctx.Done():
		return nil
	}
	for {
		next, err := m.session(ctx, subject)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if next.Node != subject.Node {
			m.xds.Forget(subject.Node)
		}
		subject = next
	}
}

// session is at the xds-server as one subject, until there is another, or a leaf after one that had expired, which it returns.
func (m *membership) session(ctx context.Context, subject model.Subject) (next model.Subject, err error) {
	domain, way := m.Control()
	conn, err := dial.Conn(way, domain, m.store, m.store)
	if err != nil {
		return model.Subject{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return asOver(m.xds.Run(ctx, xdsproxy.Upstream{
			Name: subject.Node, Conn: conn, Check: m.Check(subject), Node: m.nodeOf(subject),
		}))
	})
	group.Go(func() error { return asOver(m.Report(ctx, reporting{conn, &m.figures.lastReport}, m.dump(subject))) })
	group.Go(func() error {
		select {
		case next = <-m.subjects:
			cancel()
		case <-ctx.Done():
		}
		return nil
	})
	err = group.Wait()
	return next, err // in this order: next is set by then
}

// asOver marks the errors of streams that say that an identity is over.
func asOver(err error) error {
	if errors.Is(err, xdsproxy.ErrOver) || errors.Is(err, certs.ErrRefused) {
		return fmt.Errorf("%w: %w", errOver, err)
	}
	return err
}

// recordConfiguration records how Envoy's configuration is.
func (m *membership) recordConfiguration() {
	m.mu.Lock() // all the time: after reject there is nothing to record
	defer m.mu.Unlock()
	if m.subject == (model.Subject{}) {
		return
	}
	state := m.xds.State(m.subject.Node)
	m.served = m.served || state.Connected || state.Cached
	m.status.SetConfiguration(state)
}

// ready returns why this membership can't carry tunnels yet.
func (m *membership) ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.subject == (model.Subject{}):
		return errors.New("there is no certificate yet")
	case !m.served:
		return fmt.Errorf("%s has no configuration yet", m.subject.Node)
	}
	return nil
}

// dump returns what answers who asks what Envoy runs on behalf of a subject, and not what it runs for others: an edge may have enrolments of
// several installations.
func (m *membership) dump(subject model.Subject) reportagent.Dump {
	return func(ctx context.Context, names []string, to io.Writer) error {
		mine := func(name string) bool {
			return (len(names) == 0 || slices.Contains(names, name)) && m.xds.Owns(subject.Node, name)
		}
		return m.admin.ConfigDump(ctx, mine, to)
	}
}
