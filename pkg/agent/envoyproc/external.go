package envoyproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
)

// BootstrapFileName is the bootstrap for an Envoy that somebody else starts, in the runtime folder.
const BootstrapFileName = "envoy.yaml"

// WriteBootstrap writes the bootstrap for an Envoy that somebody else starts, and returns its mark. A file that is right already
// stays as it is.
func (c Config) WriteBootstrap() (mark string, err error) {
	data, mark, err := c.bootstrap()
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.Dir, BootstrapFileName)
	if old, err := os.ReadFile(path); err != nil || !bytes.Equal(old, data) {
		if err := disk.Replace(path, data); err != nil {
			return "", err
		}
	}
	return mark, nil
}

// ExternalArguments are what an Envoy has to be started with that somebody else starts, in the runtime folder.
func ExternalArguments() []string {
	return append([]string{"-c", BootstrapFileName}, arguments(Config{Concurrency: 1, LogLevel: "warning"})...)
}

// obtainExternal waits for an Envoy that somebody else starts. One that was started with another bootstrap is asked to end, so
// that it is started again.
func (e *Envoy) obtainExternal(ctx context.Context) (*process, error) {
	mark, err := e.Config.WriteBootstrap()
	if err != nil {
		return nil, err
	}
	running, err := e.Admin.Info(ctx)
	if err != nil {
		return nil, err
	}
	if running.Mark != mark {
		e.Log.Info("restarting Envoy: its bootstrap changed")
		err := e.Admin.Post(ctx, "/quitquitquit")
		if err == nil {
			e.Events.Stopped()
		}
		return nil, errors.Join(errors.New("finding Envoy: it is being restarted"), err)
	}
	p, err := e.followExternal()
	if err == nil {
		e.Log.Info("following the running Envoy")
	}
	return p, err
}

// followExternal holds on to an Envoy by a connection to its admin interface, on which nothing is said. It can have another
// network and process id namespace, so its socket is all there is.
func (e *Envoy) followExternal() (*process, error) {
	admin := e.Admin
	conn, err := net.DialTimeout("unix", admin.Socket, envoyadmin.Timeout)
	if err != nil {
		return nil, fmt.Errorf("finding Envoy: %w", err)
	}
	p := &process{done: make(chan struct{}), reason: "ended: its container has the exit status"}
	p.stop = func() {
		_ = admin.Post(context.Background(), "/quitquitquit") // an error says that it has ended
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
			conn = again(admin, time.Since(opened))
		}
	}()
	return p, nil
}

// again connects once more to an Envoy that has closed a connection which was open for some time: Envoy does so with those that
// are idle for long. Nil: it has ended, and what answers now, if anything does, is another one.
func again(a envoyadmin.Client, age time.Duration) net.Conn {
	running, err := a.WaitInfo(context.Background(), nil)
	if err != nil || running.Uptime < age.Truncate(time.Second) || age < time.Second {
		return nil
	}
	conn, err := net.DialTimeout("unix", a.Socket, envoyadmin.Timeout)
	if err != nil {
		return nil
	}
	return conn
}
