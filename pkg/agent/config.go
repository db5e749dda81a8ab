package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/memory"
	"github.com/fairlead/fairlead/pkg/agent/envoyproc"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/overload"
)

// complete sets defaults and validates the configuration before anything starts.
func (c *Config) complete() error {
	if c.EnvoyLogLevel == "" {
		c.EnvoyLogLevel = "warning"
	}
	if c.Concurrency == 0 {
		c.Concurrency = 1
	}
	if c.Concurrency < 0 {
		return fmt.Errorf("checking number of workers: %d is less than 1", c.Concurrency)
	}
	if c.DrainTimeout < 0 {
		return fmt.Errorf("checking time to drain: %s is negative", c.DrainTimeout)
	}
	if (c.Gateway == nil) == (len(c.Edges) == 0) {
		return errors.New("checking configuration: an agent runs either an edge or a gateway")
	}
	if c.Gateway != nil && c.Gateway.ProxyProtocol.Enabled() && c.External {
		return errors.New(
			"checking PROXY protocol: with --proxy-protocol-from the agent runs Envoy itself, because it finds Envoy's " +
				"connections by its file descriptors",
		)
	}
	if c.Gateway != nil && c.Gateway.WithoutNetAdmin && c.Concurrency > 1 {
		return errors.New(
			"checking number of workers: with --net-admin=false a gateway has one (--workers=1): the agent closes tunnels to " +
				"spread them over workers; add gateways instead",
		)
	}
	if err := c.completeFolders(); err != nil {
		return err
	}
	if c.Memory == 0 && !c.External {
		c.Memory = c.heap(memory.Limit())
	}
	if !c.External {
		// Checked early, because a token must not be used for an Envoy that cannot run.
		if _, err := exec.LookPath(c.Envoy); err != nil {
			return fmt.Errorf("finding Envoy: %w", err)
		}
	}
	return nil
}

// heap returns the heap of Envoy for a memory limit that agent and Envoy share, in bytes: three quarters of it, and at
// most the default of the role. The rest is for the agent, and for what Envoy has outside of its heap.
func (c *Config) heap(limit uint64, limited bool) uint64 {
	most := uint64(overload.EdgeHeap)
	if c.Gateway != nil {
		most = overload.GatewayHeap
	}
	if !limited {
		return most
	}
	return min(most, limit/4*3)
}

func (c *Config) completeFolders() error {
	dir, err := filepath.Abs(c.StateDir)
	if err != nil || c.StateDir == "" {
		return fmt.Errorf("checking state folder %q: it is not a path", c.StateDir)
	}
	c.StateDir = dir
	if c.RuntimeDir == "" {
		c.RuntimeDir = dir
	}
	if c.RuntimeDir, err = filepath.Abs(c.RuntimeDir); err != nil {
		return fmt.Errorf("checking runtime folder: %w", err)
	}
	// sun_path has 108 bytes with a final 0: unix(7).
	if n := len(c.path(envoy.AgentSocket)); n > 107 {
		return fmt.Errorf(
			"checking folder of sockets: the path %s is too long by %d bytes for the sockets in it", c.RuntimeDir, n-107,
		)
	}
	return nil
}

// makeFolders makes the folders and restricts them to their owner: a process that can open a socket in them gets the
// keys.
func (c Config) makeFolders() error {
	for _, dir := range []string{c.StateDir, c.RuntimeDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("creating folder: %w", err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("creating folder: %w", err)
		}
		if info.Mode().Perm() == 0o700 {
			continue // nothing to change, and the disk may be read-only
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("restricting access to folder: %w", err)
		}
	}
	if err := unix.Access(c.RuntimeDir, unix.W_OK); errors.Is(err, syscall.EROFS) {
		return fmt.Errorf(
			"checking folder of sockets: %s is on a read-only disk: set --runtime-dir to a writable one, such as "+
				"/run/fairlead; the state folder may stay read-only",
			c.RuntimeDir,
		)
	}
	return nil
}

// lock ensures that at most one agent uses the folders.
func (c Config) lock() (unlock func(), err error) {
	state, err := lock(c.StateDir)
	if err != nil || c.RuntimeDir == c.StateDir {
		return state, err
	}
	runtime, err := lock(c.RuntimeDir)
	if err != nil {
		state()
		return nil, err
	}
	return func() { runtime(); state() }, nil
}

// WriteBootstrap writes the bootstrap for an Envoy that another program starts, and makes its folder. It does not
// rewrite a file that is up to date.
func WriteBootstrap(c Config) error {
	if err := c.completeFolders(); err != nil {
		return err
	}
	if err := c.makeFolders(); err != nil {
		return err
	}
	_, err := c.process().WriteBootstrap()
	return err
}

// process returns the part of the configuration for Envoy's process.
func (c Config) process() envoyproc.Config {
	p := envoyproc.Config{
		Dir: c.RuntimeDir, Program: c.Envoy, Log: c.EnvoyLog, LogLevel: c.EnvoyLogLevel, External: c.External,
		Concurrency: c.Concurrency, Memory: c.Memory, ClusterStatistics: c.ClusterStatistics, DrainTimeout: c.DrainTimeout,
	}
	if c.Gateway != nil {
		p.Gateway, p.Clients = true, c.Gateway.Bind.Clients()
		p.WithoutNetAdmin, p.Proxied = c.Gateway.WithoutNetAdmin, c.Gateway.ProxyProtocol.Enabled()
	}
	return p
}
