// Package agent runs one Envoy, a gateway's or an edge's: it gets an identity and keeps it valid, serves it to Envoy by SDS
// on a Unix socket, writes Envoy's bootstrap, and keeps Envoy running. In go a credential and the address of the control
// channel, out comes a process that carries tunnels. It knows nothing of Kubernetes, nor of what Envoy does: that comes
// from the xds-server to Envoy itself.
//
// Envoy outlives an agent that dies, and the next agent takes it over: see adopt.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// Role is what an edge and a gateway do differently.
type Role interface {
	// Enrol tries once to get a first identity, and the trust bundle (PEM) to go with it. It reads its credential anew at
	// each call, because somebody may have replaced it. An error that wraps certs.ErrRefused is the server's last word.
	Enrol(ctx context.Context) (certs.Identity, []byte, error)
	// Expected is what the credential is for now: the id of a tunnel, empty if it does not say, and the CA (PEM) of the
	// control channel. It is read anew at each call.
	Expected() (id string, ca []byte, err error)
	// Control is where the control channel is, and the domain whose names it has.
	Control() (model.TunnelDomain, model.Endpoint)
	// Bootstrap is what Envoy starts with. A subject that is not one of this role's is an error.
	Bootstrap(subject model.Subject) (*bootstrapv3.Bootstrap, error)
}

// Config is what an Agent stands on.
type Config struct {
	Role     Role
	StateDir string // keys, sockets and bootstrap; one agent at a time

	Envoy         string // the program
	EnvoyLog      string // the file to which Envoy's log is appended; empty: the agent's own stderr
	EnvoyLogLevel string // empty: warning
	Concurrency   int    // Envoy's worker threads; 0: one

	HealthListen string // address of /healthz and /readyz; empty: none
}

// Agent runs one Envoy.
type Agent struct {
	config Config
	log    *slog.Logger
}

// New checks what can be checked before anything starts. The error names the setting that is at fault.
func New(config Config, log *slog.Logger) (*Agent, error) {
	if config.EnvoyLogLevel == "" {
		config.EnvoyLogLevel = "warning"
	}
	if config.Concurrency == 0 {
		config.Concurrency = 1
	}
	if config.Concurrency < 0 {
		return nil, fmt.Errorf("checking number of workers: %d is less than 1", config.Concurrency)
	}
	dir, err := filepath.Abs(config.StateDir)
	if err != nil || config.StateDir == "" {
		return nil, fmt.Errorf("checking state folder %q: it is no path", config.StateDir)
	}
	config.StateDir = dir
	// sun_path has 108 bytes, the last of which is 0: unix(7).
	if n := len(config.path(envoy.AgentSocket)); n > 107 {
		return nil, fmt.Errorf("checking state folder: %s is too long by %d bytes for the sockets in it", dir, n-107)
	}
	// Before a token is used up for an Envoy that can't run.
	if _, err := exec.LookPath(config.Envoy); err != nil {
		return nil, fmt.Errorf("looking for Envoy: %w", err)
	}
	return &Agent{config: config, log: log}, nil
}

func (c Config) path(name string) string { return filepath.Join(c.StateDir, name) }

// Run gets an identity, runs Envoy and keeps both going until ctx ends; then it stops Envoy and returns nil. It returns
// an error if the state folder is not usable or another agent uses it, or if a socket can't be listened on.
func (a *Agent) Run(ctx context.Context) error {
	store, err := certs.OpenStore(a.config.StateDir)
	if err != nil {
		return err
	}
	unlock, err := lock(a.config.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	secrets, err := listenUnix(a.config.path(envoy.AgentSocket))
	if err != nil {
		return err
	}
	defer secrets.Close()
	var health net.Listener
	if a.config.HealthListen != "" {
		if health, err = net.Listen("tcp", a.config.HealthListen); err != nil {
			return fmt.Errorf("listening for health checks: %w", err)
		}
	}
	return a.run(ctx, store, secrets, health)
}

func (a *Agent) run(ctx context.Context, store *certs.Store, secrets, health net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	sds := newSecretServer()
	envoys := newSupervisor(a.log)
	identities := &identities{role: a.config.Role, store: store, enrolledCA: a.config.path(enrolledCAFile), log: a.log}
	identities.forgetForeign()
	rotation := &certs.Rotation{Store: store, Renew: identities.renew, Log: a.log, Changed: func() error { return a.apply(store, sds, envoys) }}
	group.Go(func() error { return sds.serve(ctx, secrets) })
	group.Go(func() error { return rotation.Run(ctx) })
	group.Go(func() error { return envoys.run(ctx) })
	if health != nil {
		group.Go(func() error { return serveHealth(ctx, health, a.config.path(envoy.AdminSocket)) })
	}
	return group.Wait()
}

// apply gives Envoy the identity in the store, and makes sure that an Envoy runs that has its node id. After an error the
// Envoy that runs goes on, and the rotation calls it again.
func (a *Agent) apply(store *certs.Store, sds *secretServer, envoys *supervisor) error {
	identity, err := store.Identity()
	if err != nil {
		return err
	}
	if err := sds.set(identity, store.Bundle()); err != nil {
		return err
	}
	domain, _ := a.config.Role.Control()
	subject, err := parseSubject(domain, identity)
	if err != nil {
		return err
	}
	bootstrap, err := a.config.Role.Bootstrap(subject)
	if err != nil {
		return err
	}
	launch, err := prepare(a.config, bootstrap)
	if err != nil {
		return err
	}
	envoys.want(launch)
	return nil
}

// listenUnix takes over the socket of an agent that died: the lock says that none runs.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing socket of the last agent: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening for Envoy: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("closing socket to others: %w", err), listener.Close())
	}
	return listener, nil
}
