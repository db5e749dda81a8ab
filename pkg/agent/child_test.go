package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/gateway"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/model"
)

// childVariable makes the test program an agent, so that it can be killed.
const childVariable = "AGENT_TEST_CHILD"

// child is the configuration of an agent in a process of its own.
type child struct {
	StateDir, RuntimeDir, Envoy, EnvoyLog, HealthListen string
	MetricsListen                                       string // with series for each workload cluster
	Concurrency                                         int
	Memory                                              uint64
	External                                            bool
	Drain                                               time.Duration
	Adopt                                               time.Duration // 0: the default

	Gateway   bool
	XDSServer model.Endpoint
	Bind      envoy.GatewayBind
	TokenFile string // of a gateway
	Deadline  time.Duration
	// DropNetAdmin takes the capability from the agent; WithoutNetAdmin has the agent do without it.
	DropNetAdmin, WithoutNetAdmin bool
	ProxyProtocol                 envoy.ProxyProtocol

	CAFile string
	Edges  []childEdge
}

type childEdge struct {
	ID         string
	TokenFile  string
	To         []model.Endpoint // the gateways' public port
	Proxy      string
	Dial       []model.Endpoint
	APIServers []model.Endpoint
	Targets    []model.Endpoint
	Role       model.Role
	Socket     string
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
	if c.DropNetAdmin {
		if err := dropNetAdmin(); err != nil {
			return err
		}
	}
	config := Config{
		StateDir: c.StateDir, RuntimeDir: c.RuntimeDir, Envoy: c.Envoy, EnvoyLog: c.EnvoyLog, HealthListen: c.HealthListen,
		Concurrency: c.Concurrency, Memory: c.Memory, External: c.External, DrainTimeout: c.Drain,
		MetricsListen: c.MetricsListen, PerCluster: c.MetricsListen != "",
	}
	config.adoptTimeout = c.Adopt
	if c.Gateway {
		config.Gateway = c.gateway()
	} else {
		config.Joined = joinedEdge
	}
	for _, e := range c.Edges {
		edge, err := c.edge(e)
		if err != nil {
			return err
		}
		config.Edges = append(config.Edges, edge)
	}
	leave := make(chan os.Signal, 1)
	signal.Notify(leave, syscall.SIGHUP)
	config.Leave = leave
	agent, err := New(config, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return agent.Run(ctx)
}

func (c child) gateway() *gateway.Config {
	return &gateway.Config{
		Domain:          domain,
		Name:            name,
		Dialer:          way(c.XDSServer),
		Servers:         c.XDSServer,
		ReadyDeadline:   c.Deadline,
		Bind:            c.Bind,
		WithoutNetAdmin: c.WithoutNetAdmin,
		ProxyProtocol:   c.ProxyProtocol,
		Credential: func() (enrolclient.GatewayCredential, []byte, error) {
			token, err := os.ReadFile(c.TokenFile)
			if err != nil {
				return enrolclient.GatewayCredential{}, nil, err
			}
			ca, err := os.ReadFile(c.CAFile)
			return enrolclient.GatewayCredential{Token: string(token)}, ca, err
		},
	}
}

func (c child) edge(e childEdge) (edge.Config, error) {
	proxy, err := dial.ParseProxy(e.Proxy, "", nil)
	if err != nil {
		return edge.Config{}, err
	}
	return edge.Config{
		Domain: domain, Dialer: &dial.Dialer{Addresses: e.To, Proxy: proxy}, Gateways: e.Dial, APIServers: e.APIServers,
		Allowed: network.Allowed{Targets: e.Targets}, Role: e.Role, Socket: e.Socket,
		Credential: func() (edge.Credential, error) {
			token, err := os.ReadFile(e.TokenFile)
			if err != nil {
				return edge.Credential{}, err
			}
			ca, err := os.ReadFile(c.CAFile)
			return edge.Credential{ID: e.ID, Token: string(token), CA: ca}, err
		},
	}, nil
}
