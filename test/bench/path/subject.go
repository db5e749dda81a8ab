package path

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/fairlead/fairlead/test/bench/goals"
	"github.com/fairlead/fairlead/test/bench/record"
)

// place is where all subjects run: a folder for each, and the apiserver to which they lead.
type place struct {
	dir    string // of the apiserver, with its certificates
	bin    string // of our programs and of peers
	target *process
	at     string // host:port of the apiserver
	self   string // this program
}

// newPlace starts an apiserver in a folder.
func newPlace(ctx context.Context) (*place, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	bin, err := filepath.Abs("bin")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	p := &place{dir: dir, bin: bin, self: self}
	if err := writeCertificates(dir); err != nil {
		return nil, errors.Join(err, p.close())
	}
	if p.target, err = start(dir, "apiserver", self, "serve", dir); err != nil {
		return nil, errors.Join(err, p.close())
	}
	err = until(ctx, "the apiserver listens", func() error {
		address, err := os.ReadFile(filepath.Join(dir, "address"))
		p.at = string(address)
		return err
	}, p.target)
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *place) close() error {
	if p.target != nil {
		p.target.stop()
	}
	return os.RemoveAll(p.dir)
}

// subject is a running contender.
type subject struct {
	name      string
	dial      func(ctx context.Context) (net.Conn, error)
	processes []*process
	relays    []*relay
	stops     []func()
	dir       string // of this subject, removed at the end
}

// contender is one kind of connection to the apiserver, such as Fairlead or a direct connection. start starts a
// subject. A link connects its two sides: the one near the client and the one near the apiserver.
type contender struct {
	name  string
	start func(ctx context.Context, p *place, s *subject, l link) error
}

// begin starts a subject and returns when a request succeeds.
func (w contender) begin(ctx context.Context, p *place, l link) (*subject, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	s := &subject{name: w.name, dir: dir}
	if err := w.start(ctx, p, s, l); err != nil {
		s.close()
		return nil, fmt.Errorf("starting %s: %w", w.name, err)
	}
	client, err := newClient(p, s)
	if err != nil {
		s.close()
		return nil, err
	}
	defer client.close()
	err = until(ctx, w.name+" leads to the apiserver", func() error {
		return client.get(ctx, "/small")
	}, s.processes...)
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *subject) close() {
	for _, p := range s.processes {
		p.stop()
	}
	for _, r := range s.relays {
		_ = r.Close()
	}
	for _, stop := range s.stops {
		stop()
	}
	_ = os.RemoveAll(s.dir)
}

// run starts one of the subject's processes in its folder.
func (s *subject) run(name, program string, args ...string) (*process, error) {
	p, err := start(s.dir, name, program, args...)
	if err == nil {
		s.processes = append(s.processes, p)
	}
	return p, err
}

// over returns an address that leads to another address over a link.
func (s *subject) over(l link, to string) (string, error) {
	if l == (link{}) {
		return to, nil
	}
	r, err := newRelay(l, to)
	if err != nil {
		return "", err
	}
	s.relays = append(s.relays, r)
	return r.Addr().String(), nil
}

// reach makes clients dial a TCP address.
func (s *subject) reach(address string) {
	s.dial = func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
}

func (s *subject) pids() []int {
	var pids []int
	for _, p := range s.processes {
		pids = append(pids, p.cmd.Process.Pid)
	}
	return pids
}

// direct dials the apiserver.
func direct(_ context.Context, p *place, s *subject, l link) error {
	at, err := s.over(l, p.at)
	s.reach(at)
	return err
}

// required are the subjects without which a run is worth nothing: the direct connection, Fairlead, and the pair, which
// goals are relative to.
var required = []string{goals.Direct, goals.Fairlead, goals.Pair}

// contenders returns everything that is compared: first the direct connection, then Fairlead, then the pair, then the
// selected peers.
func contenders(options record.Options) []contender {
	all := []contender{{goals.Direct, direct}, {goals.Fairlead, fairlead}, {goals.Pair, pair}}
	for _, w := range peers {
		if options.Against.MatchString(w.name) {
			all = append(all, w)
		}
	}
	return all
}

// beginAll starts contenders. A peer that cannot be started is reported and skipped; the required subjects must start.
func beginAll(
	ctx context.Context, p *place, options record.Options, l link, contenders []contender,
) ([]*subject, error) {
	var subjects []*subject
	for _, w := range contenders {
		s, err := w.begin(ctx, p, l)
		switch {
		case err == nil:
			subjects = append(subjects, s)
		case slices.Contains(required, w.name) || ctx.Err() != nil:
			closeAll(subjects)
			return nil, err
		default:
			options.Printf("left out: %v", err)
		}
	}
	return subjects, nil
}

func closeAll(subjects []*subject) {
	for _, s := range subjects {
		s.close()
	}
}
