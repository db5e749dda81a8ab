package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// longLife is how long an identity must have been valid for its successor to be requested without a wait.
const longLife = 10 * time.Minute

// successions is the wait between identities that end one after the other. Each may use up a token.
var successions = retry.Backoff{Min: 10 * time.Second, Max: 5 * time.Minute}

// errOver reports that the xds-server will never serve an identity again.
var errOver = errors.New("this identity is no longer valid")

// membership is one enrolment: it keeps an identity valid and uses it.
type membership struct {
	role
	dir        string // its folder
	store      *certs.Store
	identities *identity.Renewer
	xds        *xdsproxy.Proxy
	admin      envoyadmin.Client // of the Envoy that all memberships share
	sds        *identity.SecretServer
	claims     *claims       // of all memberships
	renewal    *edge.Renewal // nil for a gateway
	status     *status.Status
	figures    *figures
	log        *slog.Logger
	joined     string                            // name of a tunnel that was joined at run time
	parts      []func(ctx context.Context) error // run beside, independent of the identity

	subjects chan model.Subject // holds the newest subject that apply has processed

	mu       sync.Mutex
	subject  model.Subject // whose secrets Envoy has; zero: none
	notAfter time.Time     // of that identity
	served   bool          // Envoy has got resources for it
}

// recover must be called before Envoy is served. It removes an identity that cannot be used, and returns the upstream
// whose resources the xDS proxy may have cached.
func (m *membership) recover() []xdsproxy.Upstream {
	m.identities.RemoveForeign()
	subject, err := m.current()
	if err != nil || m.claims.claim(m.dir, subject.Node) != nil { // apply reports it
		return nil
	}
	if leaf, err := m.store.Identity(); err == nil {
		m.follow(leaf)
	}
	return []xdsproxy.Upstream{{Name: subject.Node, Check: m.Check(subject)}}
}

// current returns the subject of the identity in the store.
func (m *membership) current() (model.Subject, error) {
	current, err := m.store.Identity()
	if err != nil {
		return model.Subject{}, err
	}
	domain, _ := m.Control()
	return identity.ParseSubject(domain, current)
}

// follow adapts to a leaf how long reverse tunnels wait for their first client, and returns whether that has changed.
func (m *membership) follow(leaf certs.Identity) bool {
	return m.renewal != nil && m.renewal.Follow(leaf.Lifetime())
}

// run runs the membership until ctx ends.
func (m *membership) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range m.parts {
		group.Go(func() error { return part(ctx) })
	}
	group.Go(func() error { m.live(ctx); return nil })
	return group.Wait()
}

// live uses one identity after the other.
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

// liveOnce keeps an identity valid and uses it, until ctx ends or the xds-server reports that it is over.
func (m *membership) liveOnce(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	rotation := &certs.Rotation{Store: m.store, Renew: m.renew, Changed: m.apply, Written: m.written, Log: m.log}
	group.Go(func() error { return rotation.Run(ctx) })
	group.Go(func() error { return m.attend(ctx) })
	return group.Wait()
}

// reject ends an identity that is over: Envoy no longer dials with it. The next one requires the credential, unless
// the end is reverted.
func (m *membership) reject(err error) {
	m.mu.Lock()
	subject := m.subject
	m.subject, m.notAfter, m.served = model.Subject{}, time.Time{}, false
	m.status.Reset()
	m.mu.Unlock()
	m.Over()
	m.log.Error(
		"xds-server rejected this identity, enrolling again if the credential allows it", "node", subject.Node, "error", err,
	)
	m.status.SetTrouble(model.TroubleCertificate, err.Error())
	m.withdraw()
	m.identities.Reject()
	select {
	case <-m.subjects: // of the identity that is over
	default:
	}
}

// withdraw removes the resources and secrets of this membership from Envoy. Its node names stay claimed, because their
// identity may return: see identity.Renewer.Reject.
func (m *membership) withdraw() {
	for _, node := range m.claims.of(m.dir) {
		m.xds.Remove(node)
	}
	if err := m.sds.Drop(m); err != nil {
		m.log.Error("cannot remove secrets from Envoy", "error", err)
	}
}

// renew implements Rotation.Renew, and records its errors.
func (m *membership) renew(ctx context.Context) (certs.Identity, []byte, error) {
	identity, bundle, err := m.identities.Renew(ctx)
	switch {
	case err == nil:
		m.status.ClearTrouble(model.TroubleCertificate)
	case ctx.Err() == nil:
		m.status.SetTrouble(model.TroubleCertificate, err.Error())
	}
	return identity, bundle, err
}

// written implements Rotation.Written.
func (m *membership) written(err error) {
	if err == nil {
		m.identities.Written()
		m.status.ClearTrouble(model.TroubleDisk)
		return
	}
	m.status.SetTrouble(model.TroubleDisk, "the new certificate is in use, but not on disk: "+err.Error())
}

// apply implements Rotation.Changed: it gives Envoy the identity in the store. It is called again after an error.
func (m *membership) apply() error {
	identity, err := m.store.Identity()
	if err != nil {
		return err
	}
	subject, err := m.current()
	if err != nil {
		return err
	}
	if err := m.claims.claim(m.dir, subject.Node); err != nil {
		m.status.SetTrouble(model.TroubleCertificate, err.Error())
		return err
	}
	m.status.ClearTrouble(model.TroubleCertificate)
	if err := m.sds.Set(m, subject, identity, m.store.Bundle()); err != nil {
		return err
	}
	m.status.SetIdentity(subject, identity)
	if m.follow(identity) {
		m.xds.ReapplyAll(envoy.IsTunnelListener)
	}
	m.mu.Lock()
	same, first := m.subject == subject, m.subject == (model.Subject{})
	// A connection that was made with an expired leaf is unusable, however long it stays open.
	expired := time.Now().After(m.notAfter)
	if !same {
		m.subject, m.served = subject, false
	}
	m.notAfter = identity.NotAfter()
	m.mu.Unlock()
	if first { // attend uses no other; otherwise it releases the previous name
		m.claims.keep(m.dir, subject.Node)
	}
	if same && !expired {
		return nil
	}
	m.recordConfiguration() // the proxy may have resources for it already
	select {
	case <-m.subjects: // obsolete
	default:
	}
	m.subjects <- subject // has room: this is the only sender
	return nil
}

// attend uses the subject of the present identity at the xds-server, until ctx ends or the identity is over.
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
			m.xds.Remove(subject.Node)
			m.claims.release(m.dir, subject.Node)
		}
		subject = next
	}
}

// session uses one subject at the xds-server. It ends, and returns the next subject, when the subject changes or an
// expired leaf is replaced.
func (m *membership) session(ctx context.Context, subject model.Subject) (next model.Subject, err error) {
	domain, dialer := m.Control()
	conn, err := dial.Conn(dialer, domain, m.store, m.store)
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

// asOver marks errors of streams which report that an identity is over.
func asOver(err error) error {
	if errors.Is(err, xdsproxy.ErrOver) || errors.Is(err, certs.ErrRefused) {
		return fmt.Errorf("%w: %w", errOver, err)
	}
	return err
}

// recordConfiguration records the state of Envoy's configuration.
func (m *membership) recordConfiguration() {
	m.mu.Lock() // held throughout: after reject there must be no record
	defer m.mu.Unlock()
	if m.subject == (model.Subject{}) {
		return
	}
	state := m.xds.State(m.subject.Node)
	m.served = m.served || state.Connected || state.Cached
	m.status.SetConfiguration(state)
}

// ready returns why this membership can't carry tunnels yet; nil: it can.
func (m *membership) ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.subject == (model.Subject{}):
		return errors.New("no certificate yet")
	case m.subject.Role == model.RoleEgress && time.Now().After(m.notAfter): // each of its connections is a new one
		return fmt.Errorf("the certificate of %s has expired", m.subject.Node)
	case !m.served:
		return fmt.Errorf("%s has no configuration yet", m.subject.Node)
	}
	return nil
}

// dump returns a function that dumps Envoy's resources, or the relay's state, of one subject. What came from other
// xds-servers is left out, because an edge may have enrolments of several installations.
func (m *membership) dump(subject model.Subject) reportagent.Dump {
	return func(ctx context.Context, what reportagent.Wanted, to io.Writer) error {
		if what.Relay {
			return json.NewEncoder(to).Encode(map[string]string{"relay": m.xds.Describe(subject.Node)})
		}
		mine := func(name string) bool {
			return (len(what.Names) == 0 || slices.Contains(what.Names, name)) && m.xds.Owns(subject.Node, name)
		}
		return m.admin.ConfigDump(ctx, mine, to)
	}
}
