package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

// place is the folder of an agent. Agents run in it one after the other.
type place struct {
	*control
	child child
	log   string
}

func newPlace(c *control, set func(*child, string)) *place {
	c.t.Helper()
	dir := envoytest.Dir(c.t)
	p := &place{control: c, log: filepath.Join(dir, "log")}
	p.child = child{
		StateDir: filepath.Join(dir, "state"), Envoy: envoytest.Path(c.t), EnvoyLog: filepath.Join(dir, "envoy.log"),
		HealthListen: freeport.Endpoint(c.t).String(), CAFile: filepath.Join(dir, "ca.crt"), Drain: 10 * time.Second,
	}
	p.write(p.child.CAFile, string(c.ca.CertPEM()))
	set(&p.child, dir)
	c.t.Cleanup(func() {
		if pid, err := p.admin().PID(); err == nil && !p.child.External {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if c.t.Failed() {
			c.t.Logf("agents:\n%s\nEnvoys:\n%s", p.read(p.log), p.read(p.child.EnvoyLog))
		}
	})
	return p
}

// newGateway returns the place of a gateway.
func newGateway(c *control) *place {
	c.t.Helper()
	if err := sockets.Permitted(); err != nil {
		c.t.Skipf("a gateway cuts tunnels: %v", err)
	}
	return newGatewayPlace(c)
}

func newGatewayPlace(c *control) *place {
	c.t.Helper()
	p := newPlace(c, func(s *child, dir string) {
		s.Gateway, s.XDSServer, s.Bind, s.TokenFile = true, c.address, c.bind, filepath.Join(dir, "token")
	})
	p.write(p.child.TokenFile, c.token)
	return p
}

// newEdge returns the place of an edge of edgeSubject's tunnel, which reaches the gateway at its public port.
func newEdge(c *control) *place {
	c.t.Helper()
	p := newPlace(c, func(*child, string) {})
	p.add(edgeSubject.ID, c.token)
	return p
}

// add adds an enrolment.
func (p *place) add(id, token string) {
	p.t.Helper()
	e := childEdge{
		ID:        id,
		TokenFile: filepath.Join(filepath.Dir(p.child.StateDir), id),
		To:        []model.Endpoint{p.bind.Public},
	}
	p.write(e.TokenFile, token)
	p.child.Edges = append(p.child.Edges, e)
}

func (p *place) write(path, data string) {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func (p *place) admin() envoyadmin.Client {
	return envoyadmin.Client{Socket: filepath.Join(cmp.Or(p.child.RuntimeDir, p.child.StateDir), envoy.AdminSocket)}
}

// agentProcess is an agent in a process of its own.
type agentProcess struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// agent starts an agent. After the test, it and its Envoy are killed.
func (p *place) agent() *agentProcess {
	p.t.Helper()
	settings, err := json.Marshal(p.child)
	if err != nil {
		p.t.Fatal(err)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	a := &agentProcess{cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	a.cmd.Env = append(os.Environ(), childVariable+"="+string(settings))
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(a.done)
		_ = a.cmd.Wait()
	}()
	p.t.Cleanup(func() { a.end(p.t, syscall.SIGKILL) })
	return a
}

// end sends a signal and waits until the agent has ended.
func (a *agentProcess) end(t *testing.T, s syscall.Signal) {
	t.Helper()
	_ = a.cmd.Process.Signal(s)
	select {
	case <-a.done:
	case <-time.After(envoytest.Patience):
		t.Errorf("the agent goes on after %v", s)
	}
}

// ready waits until the agent reports that it is ready with an Envoy other than these, and returns Envoy's process id.
func (p *place) ready(not ...int) (pid int) {
	p.t.Helper()
	envoytest.Eventually(p.t, "the agent is ready", func() (err error) {
		if pid, err = p.admin().PID(); err != nil {
			return err
		}
		for _, old := range not {
			if pid == old {
				return fmt.Errorf("Envoy is %d still", pid)
			}
		}
		code, body := p.get("/readyz")
		if code != http.StatusOK {
			return errors.New(body)
		}
		return nil
	})
	return pid
}

// serving calls ready, and also returns the serial number of the leaf that the gateway serves.
func (p *place) serving(not ...int) (pid int, serial string) {
	p.t.Helper()
	pid = p.ready(not...)
	envoytest.Eventually(p.t, "the gateway serves", func() (err error) {
		serial, err = p.served()
		return err
	})
	return pid, serial
}

// logged waits until the agents have logged a text the given number of times.
func (p *place) logged(what string, times int) {
	p.t.Helper()
	envoytest.Eventually(p.t, "the log has "+what, func() error {
		if n := strings.Count(p.read(p.log), what); n != times {
			return fmt.Errorf("%d times, want %d", n, times)
		}
		return nil
	})
}

// get requests a health endpoint; without an answer the code is 0.
func (p *place) get(path string) (code int, body string) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(
		p.t.Context(), http.MethodGet, "http://"+p.child.HealthListen+path, http.NoBody,
	)
	if err != nil {
		p.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(data)
}

// state waits until check accepts the answer of /status.
func (p *place) state(what string, check func(state) error) (last state) {
	p.t.Helper()
	envoytest.Eventually(p.t, what, func() error {
		_, body := p.get("/status")
		last = state{}
		if err := json.Unmarshal([]byte(body), &last); err != nil {
			return err
		}
		if err := check(last); err != nil {
			return fmt.Errorf("%w in %s", err, body)
		}
		return nil
	})
	return last
}

// newWorldOfNetworks returns a control channel with the apiservers of a Cluster, which have a tunnel id, and a gateway
// that is ready.
func newWorldOfNetworks(t *testing.T) (c *control, gateway *place, id string) {
	t.Helper()
	c = newWorld(t)
	gateway, id = newGateway(c), model.NewID()
	c.egress("c1", id)
	c.serve()
	gateway.agent()
	gateway.ready()
	return c, gateway, id
}

// newWorld returns a control channel for agents with real Envoys.
func newWorld(t *testing.T) *control {
	t.Helper()
	envoytest.Path(t)
	t.Parallel() // the test mostly waits
	return newControl(t)
}
