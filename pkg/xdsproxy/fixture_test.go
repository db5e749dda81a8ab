package xdsproxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

const (
	cds  = resourcev3.ClusterType
	srds = resourcev3.ScopedRouteType
	lds  = resourcev3.ListenerType

	patience = 10 * time.Second       // for events that must happen
	pause    = 150 * time.Millisecond // for events that must not happen
)

// cluster returns an Envoy cluster whose version depends on its generation.
func cluster(name string, generation int) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, ConnectTimeout: durationpb.New(time.Duration(generation) * time.Second)}
}

func listener(name string) *listenerv3.Listener { return &listenerv3.Listener{Name: name} }

func named(resources ...types.ResourceWithName) map[string]types.Resource {
	all := map[string]types.Resource{}
	for _, r := range resources {
		all[r.GetName()] = r
	}
	return all
}

// bed is a proxy on a Unix socket.
type bed struct {
	*xdsproxy.Proxy
	dir    string
	socket string
	log    *logtest.Journal
	stop   func() // ends every Run and the server, and waits for them
	ctx    context.Context
	runs   sync.WaitGroup
}

// newBed starts a proxy on a cache folder.
func newBed(t testing.TB, dir string) *bed {
	t.Helper()
	b := &bed{dir: dir, log: &logtest.Journal{}, socket: filepath.Join(envoytest.Dir(t), "agent.sock")}
	b.serve(t)
	return b
}

// serve creates a proxy from the folder and serves it on the socket.
func (b *bed) serve(t testing.TB) {
	t.Helper()
	var err error
	if b.Proxy, err = xdsproxy.New(b.dir, slog.New(slog.NewTextHandler(b.log, nil))); err != nil {
		t.Fatal(err)
	}
	b.Hasten(100*time.Millisecond, 0, time.Hour)
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(xdsproxy.MaxRequest))
	b.Register(g)
	go func() { _ = g.Serve(l) }()
	ctx, cancel := context.WithCancel(context.Background())
	b.ctx = ctx
	b.runs.Go(func() { b.Maintain(ctx) })
	b.stop = func() {
		cancel()
		g.Stop()
		b.runs.Wait()
	}
	t.Cleanup(func() {
		b.stop()
		if t.Failed() {
			t.Logf("log of the proxy:\n%s", b.log)
		}
	})
}

// follow runs an upstream on a server until the end of the test.
func (b *bed) follow(t testing.TB, name string, s *server, check func(string, *anypb.Any) error) *run {
	t.Helper()
	redial := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second}
	conn, err := grpc.NewClient("unix://"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(b.ctx)
	r := &run{cancel: cancel, end: make(chan error, 1), close: func() { _ = conn.Close() }}
	u := xdsproxy.Upstream{
		Name:  name,
		Conn:  conn,
		Check: check,
		Node:  func() *corev3.Node { return &corev3.Node{Id: "CN=" + name} },
	}
	b.runs.Go(func() { r.end <- b.Run(ctx, u) })
	return r
}

// run is an active Run.
type run struct {
	cancel context.CancelFunc
	close  func() // closes the connection
	end    chan error
}

// wait waits for its end.
func (r *run) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.end:
		return err
	case <-time.After(patience):
		t.Fatal("Run goes on")
		return nil
	}
}

// file waits for a file of the cache that contains all words.
func (b *bed) file(t testing.TB, name string, words ...string) {
	t.Helper()
	eventually.True(t, patience, "the file "+name, func() error {
		data, err := os.ReadFile(filepath.Join(b.dir, name))
		for _, word := range words {
			if !bytes.Contains(data, []byte(word)) {
				err = errors.Join(err, fmt.Errorf("it does not have %q", word))
			}
		}
		return err
	})
}

// is waits for a state of an upstream.
func (b *bed) is(t testing.TB, name, what string, ok func(xdsproxy.State) bool) {
	t.Helper()
	eventually.True(t, patience, name+" "+what, func() error {
		if s := b.State(name); !ok(s) {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
}

func connected(s xdsproxy.State) bool { return s.Connected }
