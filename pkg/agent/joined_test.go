package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

// joinedEdge is the Config.Joined of the agents in these tests.
func joinedEdge(path string) (edge.Config, error) {
	file, err := edge.ReadBootstrapFile(path)
	if err != nil {
		return edge.Config{}, err
	}
	to, err := model.ParseEndpoint(file.Gateway[0])
	if err != nil {
		return edge.Config{}, err
	}
	return edge.Config{
		Domain: model.TunnelDomain(file.TunnelDomain),
		Dialer: &dial.Dialer{Addresses: []model.Endpoint{to}},
		Credential: func() (edge.Credential, error) {
			file, err := edge.ReadBootstrapFile(path)
			return edge.Credential{Token: file.Token, ID: file.ID, CA: []byte(file.CA)}, err
		},
	}, nil
}

// bootstrapFile returns the bootstrap file of edgeSubject's tunnel at this installation.
func (c *control) bootstrapFile() []byte {
	c.t.Helper()
	data, err := yaml.Marshal(edge.BootstrapFile{
		ID: edgeSubject.ID, Gateway: edge.Addresses{c.bind.Public.String()}, TunnelDomain: string(domain), Token: c.token,
		CA: string(c.ca.CertPEM()),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return data
}

// join does what `edge-agent join` does.
func (p *place) join(data []byte) (edge.Joined, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), envoytest.Patience)
	defer cancel()
	return edge.Join(ctx, p.child.StateDir, data)
}

func (p *place) mustJoin(to *control) edge.Joined {
	p.t.Helper()
	joined, err := p.join(to.bootstrapFile())
	if err != nil {
		p.t.Fatal(err)
	}
	return joined
}

// second is another installation, with its own CA and gateways and the same tunnel domain. The tunnel of edgeSubject
// is prepared there: the edges of the Cluster that will be moved may enrol.
func second(t *testing.T) (gateway *place, comes func(*apiserver)) {
	t.Helper()
	c := newControl(t)
	c.mu.Lock()
	wc := c.clusters[edgeSubject.ID]
	c.mu.Unlock()
	waits := wc
	waits.Prepared = true
	c.publish(waits)
	gateway = newGateway(c)
	gateway.serve()
	gateway.agent()
	return gateway, func(a *apiserver) {
		wc.APIServer = a.Endpoint
		c.publish(wc)
	}
}

func TestAnEdgeJoinsATunnelWhileItRuns(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	pid := edge.ready()
	to, comes := second(t)

	stream := edge.stream(a, 8*time.Second) // the stream must not break
	joined := edge.mustJoin(to.control)
	edge.state("it is connected to both", func(s state) error {
		if len(s.Memberships) != 2 || !s.Memberships[0].Connected || !s.Memberships[1].Connected ||
			s.Memberships[1].Node != joined.Node ||
			s.Memberships[1].Joined != joined.Name {
			return errors.New("it is not")
		}
		return nil
	})
	if err := to.once(t.Context(), a); err == nil {
		t.Fatal("a tunnel whose Cluster is not there carries requests")
	}
	if again := edge.mustJoin(to.control); again != joined {
		t.Errorf("joined again as %v, and as %v before", again, joined)
	}
	began := time.Now()
	comes(a)
	to.works(a)
	t.Logf("carried requests %s after the Cluster was there", time.Since(began).Round(time.Millisecond))
	edge.works(a)
	if err := stream(); err != nil {
		t.Error(err)
	}
	if now := edge.ready(); now != pid {
		t.Errorf("Envoy is %d, and was %d", now, pid)
	}

	// The next agent has it too, without enrolling again.
	tokens, _ := to.counts()
	first.end(t, syscall.SIGHUP)
	next := edge.agent()
	edge.ready()
	to.works(a)
	edge.works(a)
	if now, _ := to.counts(); now != tokens {
		t.Error("it enrolled anew")
	}

	// The end of the tunnel at the source does not affect the other one, and the machine is ready because of the one
	// that carries it.
	gateway.end(edgeSubject.ID)
	edge.state("the source has ended its tunnel", func(s state) error {
		if s.Memberships[0].Connected {
			return errors.New("it has not")
		}
		return nil
	})
	to.works(a)
	edge.ready(0)

	edge.leaves(joined, to, a)
	next.end(t, syscall.SIGTERM)
}

// leaves leaves a tunnel and checks that nothing of it is left.
func (p *place) leaves(joined edge.Joined, to *place, a *apiserver) {
	p.t.Helper()
	if err := edge.Leave(p.child.StateDir, joined.Name); err != nil {
		p.t.Fatal(err)
	}
	p.state("it has left", func(s state) error {
		if len(s.Memberships) != 1 {
			return errors.New("it has not")
		}
		return nil
	})
	envoytest.Eventually(p.t, "its tunnel and its key are gone", func() error {
		if _, err := os.Stat(filepath.Join(p.child.StateDir, edge.JoinedFolder, joined.Name)); !errors.Is(
			err, os.ErrNotExist,
		) {
			return fmt.Errorf("the folder is there: %w", err)
		}
		if to.once(p.t.Context(), a) == nil {
			return errors.New("requests go through")
		}
		return nil
	})
}

func TestABootstrapFileTakesOverAJoinedTunnel(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	to, comes := second(t)
	joined := edge.mustJoin(to.control)
	comes(a)
	to.works(a)
	tokens, _ := to.counts()
	first.end(t, syscall.SIGTERM)
	edge.write(edge.child.CAFile, string(to.ca.CertPEM()))
	edge.write(edge.child.Edges[0].TokenFile, to.token)
	edge.child.Edges[0].To = []model.Endpoint{to.bind.Public}
	edge.agent()
	to.works(a)
	edge.state("it is the same edge", func(s state) error {
		if len(s.Memberships) != 1 || s.Memberships[0].Node != joined.Node {
			return errors.New("it is not")
		}
		return nil
	})
	if now, _ := to.counts(); now != tokens {
		t.Error("it enrolled anew")
	}
	if again := edge.mustJoin(to.control); again != joined {
		t.Errorf("joined again as %v, and as %v before", again, joined)
	}
}

func TestJoinReportsWhyItFailed(t *testing.T) {
	gateway, at, _ := newPair(t)
	gateway.serve()
	gateway.agent()
	if _, err := at.join(gateway.bootstrapFile()); err == nil || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("without a state folder: %v", err)
	}
	agent := at.agent()
	at.ready()
	own, err := at.join(gateway.bootstrapFile())
	if err != nil {
		t.Errorf("the tunnel that it has already: %v", err)
	}
	at.state("it is an edge of it once", func(s state) error {
		if len(s.Memberships) != 1 || s.Memberships[0].Node != own.Node {
			return errors.New("it is not")
		}
		return nil
	})
	to, _ := second(t)
	file := string(to.bootstrapFile())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	secret := "fl1.not-the-token"
	if _, err := edge.Join(ctx, at.child.StateDir, []byte(strings.ReplaceAll(file, to.token, secret))); err == nil ||
		!strings.Contains(err.Error(), "token is unknown") ||
		strings.Contains(err.Error(), secret) {
		t.Errorf("a token that is not good: %v", err)
	}
	at.ready(0) // a failed join does not affect readiness
	if _, err := at.join([]byte(file)); err != nil {
		t.Errorf("the same with a good token: %v", err)
	}
	agent.end(t, syscall.SIGTERM)
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := edge.Join(ctx, at.child.StateDir, []byte(file)); !errors.Is(err, edge.ErrNoAnswer) {
		t.Errorf("without an agent: %v", err)
	}
}

func TestJoinRejectsAnInvalidFile(t *testing.T) {
	c := newControl(t)
	good := string(c.bootstrapFile())
	dir := t.TempDir()
	for name, tc := range map[string]struct{ in, want string }{
		"nothing":              {in: "", want: "no token"},
		"no YAML":              {in: "token: " + c.token + "\n\t:", want: "not YAML"},
		"too much":             {in: good + strings.Repeat("#", edge.MaxBootstrapFile), want: "not YAML"},
		"no id":                {in: strings.ReplaceAll(good, edgeSubject.ID, ""), want: "tunnel id"},
		"an id with a path":    {in: strings.ReplaceAll(good, edgeSubject.ID, "../../x"), want: "tunnel id"},
		"a domain with a path": {in: strings.ReplaceAll(good, string(domain), "../../x"), want: "tunnel domain"},
		"a gateway without":    {in: strings.ReplaceAll(good, c.bind.Public.String(), "gw"), want: "host:port"},
		"a CA that is none": {
			in:   strings.ReplaceAll(good, "BEGIN CERTIFICATE", "BEGIN NONSENSE"),
			want: "ca: it is not a certificate",
		},
		"no token, all the rest": {in: strings.ReplaceAll(good, c.token, ""), want: "no token"},
	} {
		if _, err := edge.Join(t.Context(), dir, []byte(tc.in)); err == nil || !strings.Contains(err.Error(), tc.want) ||
			strings.Contains(err.Error(), c.token) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	if names, err := edge.JoinedNames(filepath.Join(dir, edge.JoinedFolder)); err != nil || len(names) > 0 {
		t.Errorf("there are %v, %v", names, err)
	}
	for _, name := range []string{"", "..", "a/b", "/etc/passwd"} {
		if edge.Leave(dir, name) == nil {
			t.Errorf("left %q", name)
		}
	}
}

func TestAnEdgeJoinsAtMostMaxJoinedTunnels(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range edge.MaxJoined + 1 {
		c := newControl(t) // each has its own CA
		_, err := edge.Join(ctx, dir, c.bootstrapFile())
		if full := err != nil && strings.Contains(err.Error(), "edge-agent leave"); full != (i == edge.MaxJoined) {
			t.Fatalf("the %d. file: %v", i+1, err)
		}
	}
	names, err := edge.JoinedNames(filepath.Join(dir, edge.JoinedFolder))
	if err != nil || len(names) != edge.MaxJoined || !slices.IsSorted(names) {
		t.Errorf("there are %v, %v", names, err)
	}
	info, err := os.Stat(filepath.Join(dir, edge.JoinedFolder, names[0]+edge.JoinedSuffix))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v, %v", info.Mode(), err)
	}
}

// TestARunningTunnelKeepsItsPlace: two commands at the same time have joined one tunnel too many.
func TestARunningTunnelKeepsItsPlace(t *testing.T) {
	a := &Agent{}
	a.config.StateDir, a.config.Joined = t.TempDir(), joinedEdge
	if err := os.MkdirAll(a.joinedRoot(), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range edge.MaxJoined + 1 {
		path := filepath.Join(a.joinedRoot(), fmt.Sprint("tunnel-", i, edge.JoinedSuffix))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	last := fmt.Sprint("tunnel-", edge.MaxJoined)
	a.joined = []*joined{{name: last}}
	names, err := a.joinedNames()
	if err != nil || len(names) != edge.MaxJoined || !slices.Contains(names, last) {
		t.Errorf("got %v, %v, want %d names with %s", names, err, edge.MaxJoined, last)
	}
}
