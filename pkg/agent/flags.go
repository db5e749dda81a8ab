package agent

import "github.com/spf13/pflag"

// AddFlags adds the flags that both agents have.
func (c *Config) AddFlags(flags *pflag.FlagSet, stateDir string) {
	flags.StringVar(&c.StateDir, "state-dir", stateDir, "folder for keys, sockets and Envoy's bootstrap")
	flags.StringVar(&c.Envoy, "envoy", "envoy", "the Envoy program")
	flags.StringVar(&c.EnvoyLog, "envoy-log", "", "file to which Envoy's log is appended (default: the agent's own stderr)")
	flags.StringVar(&c.EnvoyLogLevel, "envoy-log-level", "warning", "least level of Envoy's log")
	flags.IntVar(&c.Concurrency, "concurrency", 1, "Envoy's worker threads; more than one needs as many tunnels to each edge")
	flags.StringVar(&c.HealthListen, "health-listen", "", "address for /healthz and /readyz (default: none)")
}
