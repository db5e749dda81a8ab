package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// childVariable makes the test program an agent, so that it can be killed.
const childVariable = "AGENT_TEST_CHILD"

// child is what the agent in a process of its own is told.
type child struct {
	Config    Config
	XDSServer model.Endpoint
	Bind      envoy.GatewayBind
	TokenFile string
	CAFile    string
}

func TestMain(m *testing.M) {
	settings := os.Getenv(childVariable)
	if settings == "" {
		os.Exit(m.Run())
	}
	if err := runChild(settings); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runChild(settings string) error {
	var c child
	if err := json.Unmarshal([]byte(settings), &c); err != nil {
		return err
	}
	c.Config.Role = Gateway{Domain: domain, Name: name, XDSServer: c.XDSServer, Bind: c.Bind, Credential: func() (enrol.GatewayCredential, []byte, error) {
		token, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return enrol.GatewayCredential{}, nil, err
		}
		ca, err := os.ReadFile(c.CAFile)
		return enrol.GatewayCredential{Token: string(token)}, ca, err
	}}
	agent, err := New(c.Config, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return agent.Run(ctx)
}

// gatewayLab is a gateway's folder, in which agents run, one after the other.
type gatewayLab struct {
	*control
	child child
	log   string
}

func newGatewayLab(t *testing.T) *gatewayLab {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a real Envoy")
	}
	t.Parallel() // most of the time is waiting
	dir := envoytest.Dir(t)
	l := &gatewayLab{control: newControl(t), log: filepath.Join(dir, "log")}
	l.child = child{
		Config: Config{
			StateDir: filepath.Join(dir, "state"), Envoy: envoytest.Path(t), EnvoyLog: filepath.Join(dir, "envoy.log"),
			HealthListen: freePort(t).String(),
		},
		XDSServer: l.address, Bind: l.bind, TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca.crt"),
	}
	l.write(l.child.TokenFile, l.token)
	l.write(l.child.CAFile, string(l.ca.CertPEM()))
	t.Cleanup(func() {
		if pid, err := l.admin().pid(); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("agents:\n%s\nEnvoys:\n%s", l.read(l.log), l.read(l.child.Config.EnvoyLog))
		}
	})
	return l
}

func (l *gatewayLab) write(path, data string) {
	l.t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *gatewayLab) read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func (l *gatewayLab) admin() admin { return admin{socket: l.child.Config.path(envoy.AdminSocket)} }

// agentProcess is an agent in a process of its own.
type agentProcess struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// agent starts one. It is killed after the test, as is its Envoy.
func (l *gatewayLab) agent() *agentProcess {
	l.t.Helper()
	settings, err := json.Marshal(l.child)
	if err != nil {
		l.t.Fatal(err)
	}
	log, err := os.OpenFile(l.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	defer log.Close()
	p := &agentProcess{cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(settings))
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	l.t.Cleanup(func() { p.end(l.t, syscall.SIGKILL) })
	return p
}

// end sends a signal and waits until the agent has ended.
func (p *agentProcess) end(t *testing.T, s syscall.Signal) {
	t.Helper()
	_ = p.cmd.Process.Signal(s)
	select {
	case <-p.done:
	case <-time.After(envoytest.Patience):
		t.Errorf("the agent goes on after %v", s)
	}
}

// serving waits until the gateway serves a leaf, by an Envoy that is none of these, and returns Envoy's process id.
func (l *gatewayLab) serving(not ...int) (pid int, serial string) {
	l.t.Helper()
	envoytest.Eventually(l.t, "the gateway serves", func() (err error) {
		if pid, err = l.admin().pid(); err != nil {
			return err
		}
		for _, old := range not {
			if pid == old {
				return fmt.Errorf("Envoy is %d still", pid)
			}
		}
		serial, err = l.served()
		return errors.Join(err, l.admin().ready(l.t.Context()))
	})
	return pid, serial
}

// logged waits until the agents have logged something so many times.
func (l *gatewayLab) logged(what string, times int) {
	l.t.Helper()
	envoytest.Eventually(l.t, "the log has "+what, func() error {
		if n := strings.Count(l.read(l.log), what); n != times {
			return fmt.Errorf("%d times, want %d", n, times)
		}
		return nil
	})
}
