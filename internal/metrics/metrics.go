// Package metrics holds the one list of all figures that Fairlead's programs publish, makes collectors of what is in it, and serves
// them to Prometheus. What counts goes in, figures in Prometheus' formats come out. Nobody can publish what is not in the list,
// from which docs/metrics.md is made.
package metrics

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is what Prometheus calls a type.
type Kind string

// The kinds that there are.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Program is one that publishes figures.
type Program string

// The programs, by the names of their commands.
const (
	XDSServer    Program = "xds-server"
	Controller   Program = "controller"
	GatewayAgent Program = "gateway-agent"
	EdgeAgent    Program = "edge-agent"
)

// Metric is one entry of the list.
type Metric struct {
	Name    string
	Kind    Kind
	Labels  []string
	Help    string // what it means and, where that is not plain, what to think of a value
	Buckets []float64
	Of      []Program
	// PerCluster says that there are as many series as workload clusters, and only with --per-cluster-metrics.
	PerCluster bool
}

var byName = func() map[string]Metric {
	all := map[string]Metric{}
	for _, m := range All() {
		if _, double := all[m.Name]; double {
			panic("metric " + m.Name + " is in the list twice")
		}
		all[m.Name] = m
	}
	return all
}()

// All returns the list, in the order of the document.
func All() []Metric {
	return slices.Concat(everywhere, xdsServer, controller, agents, gateways, edges)
}

// get returns an entry. That a name is not there is a mistake of whoever writes it, which every test of the program finds.
func get(name string, kinds ...Kind) Metric {
	m, ok := byName[name]
	if !ok || !slices.Contains(kinds, m.Kind) {
		panic(fmt.Sprintf("there is no metric %q of kind %v in the list", name, kinds))
	}
	return m
}

// Set is a group of collectors that is registered as one.
type Set struct {
	parts []prometheus.Collector
}

var _ prometheus.Collector = (*Set)(nil)

// Describe implements prometheus.Collector.
func (s *Set) Describe(to chan<- *prometheus.Desc) {
	for _, p := range s.parts {
		p.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(to chan<- prometheus.Metric) {
	for _, p := range s.parts {
		p.Collect(to)
	}
}

// Add adds what another one has.
func (s *Set) Add(part prometheus.Collector) { s.parts = append(s.parts, part) }

// Counter adds the counter with a name, of the list. It has labels to be given in the order of the list.
func (s *Set) Counter(name string) *prometheus.CounterVec {
	m := get(name, Counter)
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
	if len(m.Labels) == 0 {
		c.WithLabelValues() // so that it is 0 before anything has happened
	}
	s.parts = append(s.parts, c)
	return c
}

// Histogram adds the histogram with a name, of the list.
func (s *Set) Histogram(name string) *prometheus.HistogramVec {
	m := get(name, Histogram)
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: m.Buckets}, m.Labels)
	s.parts = append(s.parts, h)
	return h
}

// Emit publishes the value that something has now. The labels are in the order of the list.
type Emit func(name string, value float64, labels ...string)

// Look adds figures that are looked up whenever somebody asks, all of which names has: so they cost nothing while nobody does, and are
// right when a program has just started.
func (s *Set) Look(look func(Emit), names ...string) {
	l := &looked{look: look, descs: map[string]*prometheus.Desc{}, kinds: map[string]prometheus.ValueType{}}
	for _, name := range names {
		m := get(name, Gauge, Counter)
		l.descs[name] = prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)
		l.kinds[name] = map[Kind]prometheus.ValueType{Gauge: prometheus.GaugeValue, Counter: prometheus.CounterValue}[m.Kind]
	}
	s.parts = append(s.parts, l)
}

type looked struct {
	look  func(Emit)
	descs map[string]*prometheus.Desc
	kinds map[string]prometheus.ValueType
}

// Describe implements prometheus.Collector.
func (l *looked) Describe(to chan<- *prometheus.Desc) {
	for _, d := range l.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (l *looked) Collect(to chan<- prometheus.Metric) {
	l.look(func(name string, value float64, labels ...string) {
		d, ok := l.descs[name]
		if !ok {
			panic("metric " + name + " is looked up without having been named")
		}
		to <- prometheus.MustNewConstMetric(d, l.kinds[name], value, labels...)
	})
}

// Bool is 1 for yes.
func Bool(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
