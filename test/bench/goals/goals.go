// Package goals compares recorded results with the goals of the project. Its input are the results of all suites, the
// list of goals in this file and the recorded causes of misses in causes.yaml. Its output is one row for each goal. It
// measures nothing.
//
// The reference of the data path is the pair: two plain Envoys with mutual TLS and no tunnel, which is what users would
// run if they could dial the apiserver. A ratio to another subject, such as the pair, is the median of the ratios of
// the rounds of one run. Figures of different runs are not compared.
package goals

// Names of subjects in the results.
const (
	Fairlead = "fairlead"
	Direct   = "direct"
	Pair     = "pair"
)

// tunnels are the subjects that solve the same problem as Fairlead, with encryption.
var tunnels = []string{"remotedialer", "konnectivity", "rathole", "ssh"}

// Goal is one row of the table. All its cases must reach their bounds.
type Goal struct {
	ID    string // in causes.yaml and in arguments
	Title string
	Unit  string // of the measured figures, after Case.times
	Cases []Case
	// relativeTo is the subject whose figures the bounds are multiples of; empty: the bounds are in Unit.
	relativeTo string
	atLeast    bool // bounds are minimums; otherwise maximums
	// ahead means that the figure must also be better than that of every other tunnel.
	ahead bool
}

// Case is one condition under which the figure of a goal is measured.
type Case struct {
	Label string // distinguishes the cases of a goal, in causes.yaml too; empty for the only case
	bound float64

	suite, name, subject string
	params               map[string]string
	worst                bool    // the highest sample counts instead of the median
	times                float64 // converts the recorded unit; 0 means 1
}

// path returns a case of the suite path.
func path(label, name string, bound float64, params ...string) Case {
	return Case{Label: label, bound: bound, suite: "path", name: name, subject: Fairlead, params: pairs(params)}
}

// scale returns a case of the suite scale with 10,000 workload clusters.
func scale(label, name, subject string, bound float64) Case {
	return Case{
		Label: label, bound: bound, suite: "scale", name: name, subject: subject,
		params: map[string]string{"clusters": "10000"},
	}
}

func pairs(words []string) map[string]string {
	if len(words) == 0 {
		return nil
	}
	return map[string]string{words[0]: words[1]}
}

// converted makes a case multiply the recorded figure.
func (c Case) converted(times float64) Case {
	c.times = times
	return c
}

// atWorst makes the highest sample of a case count.
func (c Case) atWorst() Case {
	c.worst = true
	return c
}

const (
	streams  = "streams"
	trip     = "round trip (ms)"
	uplink   = "uplink (Mbit/s)"
	stalled  = "stalled readers"
	mibPerMB = 1e6 / (1 << 20)
)

// All lists the goals, in the order of the table.
var All = []Goal{
	{
		ID: "throughput", Title: "throughput of 1 / 8 / 64 streams", Unit: "MB/s",
		relativeTo: Pair, atLeast: true, ahead: true,
		Cases: []Case{
			path("1", "throughput", 0.90, streams, "1"), path("8", "throughput", 0.90, streams, "8"),
			path("64", "throughput", 0.90, streams, "64"),
		},
	},
	{
		ID: "cpu", Title: "CPU time between client and apiserver, 1 / 8 / 64 streams", Unit: "CPU s/GB",
		relativeTo: Pair,
		Cases: []Case{
			path("1", "cpu", 1.2, streams, "1"), path("8", "cpu", 1.2, streams, "8"), path("64", "cpu", 1.2, streams, "64"),
		},
	},
	{
		ID: "small-request", Title: "small request, p50 above direct", Unit: "ms",
		Cases: []Case{path("", "p50 idle over direct", 0.080)},
	},
	{
		ID: "small-request-bulk", Title: "small request beside one bulk download, p50 / p99", Unit: "ms",
		Cases: []Case{path("p50", "p50 bulk", 1), path("p99", "p99 bulk", 6)},
	},
	{
		ID: "round-trip", Title: "one stream at a round trip of 50 / 100 / 200 ms", Unit: "MB/s", atLeast: true,
		Cases: []Case{
			path("50", "throughput by round trip", 300, trip, "50"),
			path("100", "throughput by round trip", 150, trip, "100"),
			path("200", "throughput by round trip", 75, trip, "200"),
		},
	},
	{
		ID: "uplink", Title: "fresh request while four downloads fill 2 / 10 / 100 Mbit/s", Unit: "s",
		Cases: []Case{
			path("2", "fresh request", 0.5, uplink, "2"), path("10", "fresh request", 0.15, uplink, "10"),
			path("100", "fresh request", 0.2, uplink, "100"),
		},
	},
	{
		ID: "stalled", Title: "p99 of other clients beside 64 stalled readers", Unit: "× before",
		Cases: []Case{path("", "p99 stalled/before", 1.3, stalled, "64")},
	},
	{
		// The 64 readers of the benchmark use one tunnel id, so their sum is what that tunnel id pins.
		ID: "stalled-memory", Title: "memory that 64 stalled readers of one tunnel id pin", Unit: "MiB",
		Cases: []Case{path("", "memory per stalled reader", 64, stalled, "64").converted(64 * mibPerMB)},
	},
	{
		ID: "new-connections", Title: "new connections", Unit: "1/s", relativeTo: Direct, atLeast: true,
		Cases: []Case{path("", "new connections", 0.75)},
	},
	{
		ID: "xds-memory", Title: "memory of a whole xds-server with 10,000 control channels", Unit: "MB",
		Cases: []Case{scale("", "memory if all had a control channel", "xds-server", 800)},
	},
	{
		ID:    "xds-killed",
		Title: "xds-server killed at 10,000 workload clusters, until the next change takes effect", Unit: "s",
		Cases: []Case{scale("", "killed: works again after", "xds-server", 10)},
	},
	{
		ID: "writes", Title: "writes to the apiserver for a new Cluster", Unit: "requests",
		Cases: []Case{scale("", "writes for a new Cluster", "apiserver", 6)},
	},
	{
		ID:    "reconnect",
		Title: "all edges reconnect at 10,000: slowest answer / requests without an answer", Unit: "s",
		Cases: []Case{
			scale("slowest", "requests while edges come back p50", Fairlead, 5).atWorst().converted(1e-3),
			scale("failed", "requests while edges come back: failed", Fairlead, 0),
		},
	},
}
