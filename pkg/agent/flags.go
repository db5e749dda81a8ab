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
	flags.StringVar(&c.EnvoyLog, "envoy-log", "", "file to which Envoy's log is appended (default: stderr of the agent)")
	flags.StringVar(&c.EnvoyLogLevel, "envoy-log-level", "warning", "lowest level of Envoy's log")
	flags.IntVar(
		&c.Concurrency, "workers", 1,
		"worker threads of Envoy; on gateways the same number as the xds-servers' --gateway-workers",
	)
	flags.DurationVar(
		&c.DrainTimeout, "drain-timeout", drainTimeout, "how long open connections may continue after SIGTERM",
	)
	flags.StringVar(
		&c.MetricsListen, "metrics-listen", "0",
		"address of /metrics for Prometheus, plain HTTP, of the agent and its Envoy; 0 for none",
	)
	flags.BoolVar(&c.PerCluster, "per-cluster-metrics", false, "also publish series for each workload cluster")
	flags.StringVar(&c.HealthListen, "health-listen", "", "address for /healthz, /readyz and /status (default: none)")
}

// AddBootstrapFlags adds the flags that determine where Envoy's bootstrap is and what it contains.
func (c *Config) AddBootstrapFlags(flags *pflag.FlagSet, stateDir string) {
	flags.StringVar(&c.StateDir, "state-dir", stateDir, "folder for keys, certificates and the cached configuration")
	flags.StringVar(
		&c.RuntimeDir, "runtime-dir", "",
		"folder for sockets and Envoy's bootstrap; need not survive a restart of the machine (default: the state folder)",
	)
	flags.Var(
		(*size)(&c.Memory), "envoy-memory",
		"heap size at which Envoy rejects what is new, such as 512Mi (default: chosen for the role, and at most "+
			"three quarters of the memory limit of the agent's control group)",
	)
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
	return fmt.Errorf("%q is not a number of bytes such as 512Mi or 1Gi", text)
}

// Type implements pflag.Value.
func (s *size) Type() string { return "bytes" }
