// Package metrics holds the single list of the metrics that Fairlead's programs publish, makes collectors for them, and
// serves them to Prometheus. Its input is values. Its output is Prometheus' formats. A metric that is not in the list
// cannot be published, and docs/metrics.md is generated from the list.
package metrics

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is a metric type of Prometheus.
type Kind string

// The kinds of metrics.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Program is a program that publishes metrics.
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
	Help    string // what it means and, unless that is obvious, how to interpret a value
	Buckets []float64
	Of      []Program
	// PerCluster marks a metric with one series per workload cluster, published only with --per-cluster-metrics.
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

// All returns the list in the order of the document.
func All() []Metric {
	return slices.Concat(everywhere, xdsServer, controller, agents, gateways, edges)
}

// get returns an entry of the list. It panics if there is no entry with that name and kind: that is a programming
// error, which every test of the program finds.
func get(name string, kinds ...Kind) Metric {
	m, ok := byName[name]
	if !ok || !slices.Contains(kinds, m.Kind) {
		panic(fmt.Sprintf("metric %q of kind %v is not in the list", name, kinds))
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

// Add adds a collector.
func (s *Set) Add(part prometheus.Collector) { s.parts = append(s.parts, part) }

// Counter adds and returns the counter with a name of the list. Its labels are given in the order of the list.
func (s *Set) Counter(name string) *prometheus.CounterVec {
	m := get(name, Counter)
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
	if len(m.Labels) == 0 {
		c.WithLabelValues() // without labels the counter starts at 0 instead of being absent
	}
	s.parts = append(s.parts, c)
	return c
}

// Histogram adds and returns the histogram with a name of the list.
func (s *Set) Histogram(name string) *prometheus.HistogramVec {
	m := get(name, Histogram)
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: m.Buckets}, m.Labels)
	s.parts = append(s.parts, h)
	return h
}

// Emit publishes the current value of a metric. The labels are in the order of the list.
type Emit func(name string, value float64, labels ...string)

// Observe adds metrics whose values emit reports at each scrape. names lists all of them. They cost nothing between
// scrapes, and are correct right after the start of a program.
func (s *Set) Observe(look func(Emit), names ...string) {
	l := &scraped{collect: look, descs: map[string]*prometheus.Desc{}, kinds: map[string]prometheus.ValueType{}}
	for _, name := range names {
		m := get(name, Gauge, Counter)
		l.descs[name] = prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)
		l.kinds[name] = map[Kind]prometheus.ValueType{Gauge: prometheus.GaugeValue, Counter: prometheus.CounterValue}[m.Kind]
	}
	s.parts = append(s.parts, l)
}

type scraped struct {
	collect func(Emit)
	descs   map[string]*prometheus.Desc
	kinds   map[string]prometheus.ValueType
}

// Describe implements prometheus.Collector.
func (l *scraped) Describe(to chan<- *prometheus.Desc) {
	for _, d := range l.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (l *scraped) Collect(to chan<- prometheus.Metric) {
	l.collect(func(name string, value float64, labels ...string) {
		d, ok := l.descs[name]
		if !ok {
			panic("metric " + name + " is looked up without having been named")
		}
		to <- prometheus.MustNewConstMetric(d, l.kinds[name], value, labels...)
	})
}

// Bool returns 1 for true and 0 for false.
func Bool(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
