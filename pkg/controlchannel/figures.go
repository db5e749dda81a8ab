package controlchannel

import (
	"errors"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/metrics"
)

// figures are the metrics of a Channel.
type figures struct {
	metrics.Set
	calls, gone *prometheus.CounterVec
	connections [classes]atomic.Int64

	mu      sync.RWMutex
	methods map[string]string // display names of the methods, by full name
}

var classNames = [classes]string{unauthenticated: "stranger", edges: "edge", internal: "insider"}

func newFigures() *figures {
	f := &figures{methods: map[string]string{}}
	f.calls, f.gone = f.Counter("fairlead_channel_calls_total"), f.Counter("fairlead_channel_displaced_total")
	f.gone.WithLabelValues("stranger")
	f.gone.WithLabelValues("edge")
	f.Observe(func(emit metrics.Emit) {
		for class, name := range classNames {
			emit("fairlead_channel_connections", float64(f.connections[class].Load()), name)
		}
	}, "fairlead_channel_connections")
	return f
}

// Metrics returns the metrics of the channel.
func (c *Channel) Metrics() prometheus.Collector {
	s := &metrics.Set{}
	s.Observe(func(emit metrics.Emit) {
		emit("fairlead_channel_turned_away_total", float64(c.acceptor.rejected.Load()))
	}, "fairlead_channel_turned_away_total")
	s.Add(c.figures)
	return s
}

// register adds the methods of a service. Calls of any other method, with arbitrary names, count as one.
func (f *figures) register(description *grpc.ServiceDesc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	service := description.ServiceName[strings.LastIndex(description.ServiceName, ".")+1:]
	for _, m := range description.Methods {
		f.methods[path.Join("/", description.ServiceName, m.MethodName)] = service + "/" + m.MethodName
	}
	for _, s := range description.Streams {
		f.methods[path.Join("/", description.ServiceName, s.StreamName)] = service + "/" + s.StreamName
	}
}

// called counts a call that was admitted or rejected.
func (f *figures) called(method string, err error) {
	f.mu.RLock()
	name, ok := f.methods[method]
	f.mu.RUnlock()
	if !ok {
		name = "other"
	}
	f.calls.WithLabelValues(name, status.Code(err).String()).Inc()
}

// displaced counts a connection that was displaced by another.
func (f *figures) displaced(why error) {
	class := unauthenticated
	if errors.Is(why, errTunnels) {
		class = edges
	}
	f.gone.WithLabelValues(classNames[class]).Inc()
}

// connected counts a connection, and returns a function that uncounts it.
func (f *figures) connected(class int) (gone func()) {
	f.connections[class].Add(1)
	return func() { f.connections[class].Add(-1) }
}
