// Package kubelog passes a process's logger to the Kubernetes libraries, which have their own logging. It is separate
// from package logging because the agents do not link these libraries.
package kubelog

import (
	"log/slog"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

var once sync.Once

// SetLogger sets the logger of the Kubernetes libraries. Only the first call in a process has an effect: the logger is
// global, and the libraries read it without a lock.
func SetLogger(logger *slog.Logger) {
	once.Do(func() {
		log.SetLogger(logr.FromSlogHandler(logger.Handler()))
		klog.SetSlogLogger(logger)
	})
}
