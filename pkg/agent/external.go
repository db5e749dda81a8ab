package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
)

// BootstrapFileName is the bootstrap for an Envoy that somebody else starts, in the runtime folder.
const BootstrapFileName = "envoy.yaml"

// WriteBootstrap writes the bootstrap for an Envoy that somebody else starts, and makes the folder for it. A file that is
// right already stays as it is.
func WriteBootstrap(c Config) error {
	if err := c.completeFolders(); err != nil {
		return err
	}
	if err := c.makeFolders(); err != nil {
		return err
	}
	_, err := c.writeExternal()
	return err
}

// writeExternal returns the mark of what it has written.
func (c Config) writeExternal() (mark string, err error) {
	data, mark, err := c.bootstrap()
	if err != nil {
		return "", err
	}
	path := c.path(BootstrapFileName)
	if old, err := os.ReadFile(path); err != nil || !bytes.Equal(old, data) {
		if err := disk.Replace(path, data); err != nil {
			return "", err
		}
	}
	return mark, nil
}

// ExternalArguments are what an Envoy has to be started with that somebody else starts, in the runtime folder.
func ExternalArguments() []string {
	return append([]string{"-c", BootstrapFileName}, arguments(Config{Concurrency: 1, EnvoyLogLevel: "warning"})...)
}

// obtainExternal waits for an Envoy that somebody else starts. One that was started with another bootstrap is asked to end, so
// that it is started again.
func (a *Agent) obtainExternal(ctx context.Context) (*process, error) {
	mark, err := a.config.writeExternal()
	if err != nil {
		return nil, err
	}
	running, err := a.config.admin().info(ctx)
	if err != nil {
		return nil, err
	}
	if running.mark != mark {
		a.log.Info("having Envoy started again, because its bootstrap changed")
		err := a.config.admin().post(ctx, "/quitquitquit")
		if err == nil {
			a.relay.Ended()
		}
		return nil, errors.Join(errors.New("looking for Envoy: it is being started again"), err)
	}
	p, err := a.followExternal()
	if err == nil {
		a.log.Info("Envoy runs, holding on to it")
	}
	return p, err
}

// followExternal holds on to an Envoy by a connection to its admin interface, on which nothing is said. It can have another
// network and process id namespace, so its socket is all there is.
func (a *Agent) followExternal() (*process, error) {
	admin := a.config.admin()
	conn, err := net.DialTimeout("unix", admin.socket, adminTimeout)
	if err != nil {
		return nil, fmt.Errorf("looking for Envoy: %w", err)
	}
	p := &process{done: make(chan struct{}), reason: "ended, and its container alone knows how"}
	p.stop = func() {
		_ = admin.post(context.Background(), "/quitquitquit") // an error says that it has ended
		select {
		case <-p.done:
		case <-time.After(stopTimeout): // its container ends it
		}
	}
	go func() {
		defer close(p.done)
		for opened := time.Now(); conn != nil; opened = time.Now() {
			_, _ = conn.Read(make([]byte, 1)) // until it is closed
			_ = conn.Close()
			conn = admin.again(time.Since(opened))
		}
	}()
	return p, nil
}

// again connects once more to an Envoy that has closed a connection which was open for some time: Envoy does so with those that
// are idle for long. Nil: it has ended, and what answers now, if anything does, is another one.
func (a admin) again(age time.Duration) net.Conn {
	running, err := a.patientInfo(context.Background(), nil)
	if err != nil || running.uptime < age.Truncate(time.Second) || age < time.Second {
		return nil
	}
	conn, err := net.DialTimeout("unix", a.socket, adminTimeout)
	if err != nil {
		return nil
	}
	return conn
}
