package agent

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// drainTimeout is shorter than the 30 s that Kubernetes gives a Pod to end.
const drainTimeout = 20 * time.Second

// AddFlags adds the flags that both agents share.
func (c *Config) AddFlags(flags *pflag.FlagSet, stateDir string) {
	c.AddBootstrapFlags(flags, stateDir)
	flags.StringVar(&c.Envoy, "envoy", "envoy", "the Envoy program")
	flags.StringVar(&c.EnvoyLog, "envoy-log", "", "file to which Envoy's log is appended (default: the agent's own stderr)")
	flags.StringVar(&c.EnvoyLogLevel, "envoy-log-level", "warning", "least level of Envoy's log")
	flags.IntVar(&c.Concurrency, "workers", 1, "worker threads of Envoy; those of gateways are for the xds-servers' --gateway-workers too")
	flags.DurationVar(&c.DrainTimeout, "drain-timeout", drainTimeout, "how long open connections may go on after SIGTERM")
	flags.StringVar(&c.MetricsListen, "metrics-listen", "0", "address of /metrics for Prometheus, plain HTTP, of the agent and its Envoy; 0 for none")
	flags.BoolVar(&c.PerCluster, "per-cluster-metrics", false, "publish series for each workload cluster too")
	flags.StringVar(&c.HealthListen, "health-listen", "", "address for /healthz, /readyz and /status (default: none)")
}

// AddBootstrapFlags adds the flags that determine where Envoy's bootstrap is and what it contains.
func (c *Config) AddBootstrapFlags(flags *pflag.FlagSet, stateDir string) {
	flags.StringVar(&c.StateDir, "state-dir", stateDir, "folder for keys and for what the xds-server sent")
	flags.StringVar(&c.RuntimeDir, "runtime-dir", "", "folder for sockets and Envoy's bootstrap, where a restart of the machine may lose them (default: the state folder)")
	flags.Var((*size)(&c.Memory), "envoy-memory", "heap at which Envoy takes no more connections, such as 512Mi (default: chosen for the role)")
}

// size is a number of bytes as a flag.
type size uint64

var units = []struct {
	suffix string
	bytes  uint64
}{{"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"", 1}}

// String implements pflag.Value.
func (s *size) String() string {
	if *s == 0 {
		return ""
	}
	for _, u := range units {
		if uint64(*s)%u.bytes == 0 {
			return strconv.FormatUint(uint64(*s)/u.bytes, 10) + u.suffix
		}
	}
	return ""
}

// Set implements pflag.Value.
func (s *size) Set(text string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil || n == 0 {
			break
		}
		*s = size(n * u.bytes)
		return nil
	}
	return fmt.Errorf("%q is no number of bytes such as 512Mi or 1Gi", text)
}

// Type implements pflag.Value.
func (s *size) Type() string { return "bytes" }
