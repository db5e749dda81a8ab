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

// BootstrapFileName is the name of the bootstrap, in the runtime folder, for an Envoy that another program starts.
const BootstrapFileName = "envoy.yaml"

// WriteBootstrap writes the bootstrap for an Envoy that another program starts, and returns its mark. It does not
// rewrite a file that is up to date.
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

// ExternalArguments returns the arguments for an Envoy that another program starts in the runtime folder.
func ExternalArguments() []string {
	return append([]string{"-c", BootstrapFileName}, arguments(Config{Concurrency: 1, LogLevel: "warning"})...)
}

// obtainExternal takes over an Envoy that another program starts. If Envoy has another bootstrap, it is asked to end,
// so that it is started again.
func (e *Envoy) obtainExternal(ctx context.Context) (*process, error) {
	mark, err := e.Config.WriteBootstrap()
	if err != nil {
		return nil, err
	}
	running, err := e.Admin.Info(ctx)
	if err != nil {
		return nil, err
	}
	if running.Mark != mark || e.drained(ctx) {
		e.Log.Info("restarting Envoy: its bootstrap changed, or it drains")
		err := errors.Join(e.Admin.Post(ctx, "/quitquitquit"), e.Config.forgetDrain())
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

// followExternal observes an Envoy by an idle connection to its admin interface. Envoy may have other network and
// process id namespaces, so its socket is the only access.
func (e *Envoy) followExternal() (*process, error) {
	admin := e.Admin
	conn, err := net.DialTimeout("unix", admin.Socket, envoyadmin.Timeout)
	if err != nil {
		return nil, fmt.Errorf("finding Envoy: %w", err)
	}
	p := &process{done: make(chan struct{}), reason: "ended: its container has the exit status"}
	p.stop = func(within time.Duration) {
		_ = admin.Post(context.Background(), "/quitquitquit") // an error means that it has ended
		select {
		case <-p.done:
			if err := e.Config.forgetDrain(); err != nil {
				e.Log.Warn("the next Envoy will be restarted once", "error", err)
			}
		case <-time.After(within): // its container ends it
		}
	}
	go func() {
		defer close(p.done)
		for opened := time.Now(); conn != nil; opened = time.Now() {
			_, _ = conn.Read(make([]byte, 1)) // returns when the connection is closed
			_ = conn.Close()
			conn = again(admin, time.Since(opened))
		}
	}()
	return p, nil
}

// again reconnects to an Envoy that has closed a connection after some time, as Envoy does with connections that are
// idle for long. It returns nil if Envoy has ended; a process that answers now is another Envoy.
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
