// Package kubelog gives a process's one logger to Kubernetes' libraries, which log by themselves. It stands apart from
// package logging for the sake of the agents, which link none of them.
package kubelog

import (
	"log/slog"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

var once sync.Once

// SetLogger is done once in a process, by the first who asks: what the libraries log to belongs to all of it, and they read it
// without a lock.
func SetLogger(logger *slog.Logger) {
	once.Do(func() {
		log.SetLogger(logr.FromSlogHandler(logger.Handler()))
		klog.SetSlogLogger(logger)
	})
}
