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

// figures is what a Channel counts.
type figures struct {
	metrics.Set
	calls, gone *prometheus.CounterVec
	connections [classes]atomic.Int64

	mu      sync.RWMutex
	methods map[string]string // full names of those that there are, and what they are called
}

var classNames = [classes]string{strangers: "stranger", edges: "edge", insiders: "insider"}

func newFigures() *figures {
	f := &figures{methods: map[string]string{}}
	f.calls, f.gone = f.Counter("fairlead_channel_calls_total"), f.Counter("fairlead_channel_displaced_total")
	f.gone.WithLabelValues("stranger")
	f.gone.WithLabelValues("edge")
	f.Look(func(emit metrics.Emit) {
		for class, name := range classNames {
			emit("fairlead_channel_connections", float64(f.connections[class].Load()), name)
		}
	}, "fairlead_channel_connections")
	return f
}

// Metrics returns what the channel counts.
func (c *Channel) Metrics() prometheus.Collector {
	s := &metrics.Set{}
	s.Look(func(emit metrics.Emit) {
		emit("fairlead_channel_turned_away_total", float64(c.door.turnedAway.Load()))
	}, "fairlead_channel_turned_away_total")
	s.Add(c.figures)
	return s
}

// learn notes the methods of a service. Others can be called too, by anybody and by any name, and count as one.
func (f *figures) learn(description *grpc.ServiceDesc) {
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

// called counts a call that was let through to its service, or was not.
func (f *figures) called(method string, err error) {
	f.mu.RLock()
	name, ok := f.methods[method]
	f.mu.RUnlock()
	if !ok {
		name = "other"
	}
	f.calls.WithLabelValues(name, status.Code(err).String()).Inc()
}

// displaced counts a connection that gave way to another.
func (f *figures) displaced(why error) {
	class := strangers
	if errors.Is(why, errTunnels) {
		class = edges
	}
	f.gone.WithLabelValues(classNames[class]).Inc()
}

// connected counts a connection, and returns what ends that.
func (f *figures) connected(class int) (gone func()) {
	f.connections[class].Add(1)
	return func() { f.connections[class].Add(-1) }
}
