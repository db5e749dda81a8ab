package main

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// registerer replaces collectors that are registered already: controller-runtime has one registry per process, and
// tests run the program several times.
type registerer struct{ prometheus.Registerer }

// Register implements prometheus.Registerer.
func (r registerer) Register(c prometheus.Collector) error {
	err := r.Registerer.Register(c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		r.Unregister(there.ExistingCollector)
		return r.Registerer.Register(c)
	}
	return err
}

// MustRegister implements prometheus.Registerer.
func (r registerer) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}
