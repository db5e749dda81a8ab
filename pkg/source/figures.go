package source

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/fairlead/fairlead/internal/metrics"
)

// figures holds the counters of a Kube.
type figures struct {
	metrics.Set
	failed *prometheus.CounterVec
}

func newFigures() *figures {
	f := &figures{}
	f.failed = f.Counter("fairlead_source_watch_errors_total")
	for _, resource := range watched {
		f.failed.WithLabelValues(resource)
	}
	return f
}

var watched = []string{"Cluster", "Tunnel", "RemoteNetwork", "ConfigMap", "StatefulSet"}

// Metrics returns the metrics of the source.
func (k *Kube) Metrics() prometheus.Collector {
	s := &metrics.Set{}
	s.Add(k.figures)
	s.Observe(func(emit metrics.Emit) {
		emit("fairlead_source_synced", metrics.Bool(k.Synced()))
		emit("fairlead_source_queue", float64(k.queue.Len()))
	}, "fairlead_source_synced", "fairlead_source_queue")
	return s
}

// Synced reports whether all objects have been read once.
func (k *Kube) Synced() bool {
	select {
	case <-k.read:
		return true
	default:
		return false
	}
}

// watchFailed counts a watch that did not end normally, and leaves the rest to the client library.
func (f *figures) watchFailed(ctx context.Context, r *toolscache.Reflector, err error) {
	if !errors.Is(err, io.EOF) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		name := r.TypeDescription()
		f.failed.WithLabelValues(name[strings.LastIndex(name, ".")+1:]).Inc()
	}
	toolscache.DefaultWatchErrorHandler(ctx, r, err)
}
