package envoyproc

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/envoy"
)

// drainTime is how long connections of a removed listener continue. The default of 10 min would keep tunnels of an
// edge whose tunnel has ended.
const drainTime = 3 * time.Second

// launch is everything that determines what Envoy does from its start. Two launches are equal if their bootstraps have
// the same name, which contains a hash of everything. A running Envoy reports its own.
type launch struct {
	dir     string
	program string
	config  string // name of the bootstrap in dir
	args    []string
	log     string // file, or empty
}

// arguments returns Envoy's arguments other than its bootstrap.
func arguments(c Config) []string {
	return []string{
		"--concurrency", strconv.Itoa(c.Concurrency),
		"--drain-time-s", strconv.Itoa(int(drainTime.Seconds())),
		"--drain-strategy", "immediate", // while it drains, each answer asks the gateway to use another tunnel
		"--file-flush-interval-msec", "200", // the table of tunnels is at most this late
		"--log-level", c.LogLevel,
		"--component-log-level", envoy.ComponentLogLevel,
		"--disable-hot-restart", // no shared memory, so any number of Envoys on a machine, and nothing left after a crash
	}
}

// bootstrap returns Envoy's bootstrap and the mark in it. It does not depend on an identity: see package envoy.
func (c Config) bootstrap() (data []byte, mark string, err error) {
	settings := envoy.BootstrapConfig{MaxHeap: c.Memory, ClusterStatistics: c.ClusterStatistics}
	b := envoy.EdgeBootstrap(settings)
	if c.Gateway {
		b = envoy.GatewayBootstrap(settings)
	}
	if data, err = envoy.MarshalYAML(b); err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(fmt.Appendf(data, "\nproxied: %t", c.Proxied))
	mark = hex.EncodeToString(sum[:8])
	b.Node.Metadata = &structpb.Struct{
		Fields: map[string]*structpb.Value{envoyadmin.MarkKey: structpb.NewStringValue(mark)},
	}
	data, err = envoy.MarshalYAML(b)
	return data, mark, err
}

// prepare writes the bootstrap, and removes the ones of earlier launches.
func prepare(c Config) (launch, error) {
	data, _, err := c.bootstrap()
	if err != nil {
		return launch{}, err
	}
	l := launch{dir: c.Dir, log: c.Log, args: arguments(c)}
	if l.program, err = exec.LookPath(c.Program); err != nil {
		return launch{}, fmt.Errorf("finding Envoy: %w", err)
	}
	if l.program, err = filepath.Abs(l.program); err != nil { // Envoy starts in another working directory
		return launch{}, fmt.Errorf("finding Envoy: %w", err)
	}
	hash, err := l.hash(data)
	if err != nil {
		return launch{}, err
	}
	l.config = "envoy-" + hash + ".yaml"
	l.args = append([]string{"-c", l.config}, l.args...)
	return l, l.write(data)
}

// hash returns a hash of everything that Envoy is started with and of the program: an Envoy whose program was replaced
// by a newer one is not adopted.
func (l launch) hash(bootstrap []byte) (string, error) {
	program, err := os.Stat(l.program)
	if err != nil {
		return "", fmt.Errorf("finding Envoy: %w", err)
	}
	all, err := json.Marshal([]any{bootstrap, l.args, l.log, l.program, program.Size(), program.ModTime().UnixNano()})
	if err != nil {
		return "", fmt.Errorf("hashing bootstrap: %w", err)
	}
	sum := sha256.Sum256(all)
	return hex.EncodeToString(sum[:8]), nil
}

func (l launch) write(bootstrap []byte) error {
	old, err := filepath.Glob(filepath.Join(l.dir, "envoy-*.yaml"))
	if err != nil {
		return fmt.Errorf("listing old bootstraps: %w", err)
	}
	if !slices.Contains(old, filepath.Join(l.dir, l.config)) {
		if err := disk.Replace(filepath.Join(l.dir, l.config), bootstrap); err != nil {
			return err
		}
	}
	for _, path := range old {
		if filepath.Base(path) != l.config {
			if err := os.Remove(path); err != nil { // Envoy has read it already
				return fmt.Errorf("removing old bootstrap: %w", err)
			}
		}
	}
	return nil
}

// command returns the command that starts Envoy in its own session, so that a signal to the agent from a terminal does
// not end Envoy. The caller must close the log file.
func (l launch) command() (*exec.Cmd, *os.File, error) {
	output := os.Stderr // the file itself: a pipe through the agent would end with the agent
	if l.log != "" {
		var err error
		if output, err = os.OpenFile(l.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640); err != nil {
			return nil, nil, fmt.Errorf("opening Envoy's log: %w", err)
		}
	}
	cmd := exec.Command(l.program, l.args...)
	cmd.Dir = l.dir
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = ownSession()
	return cmd, output, nil
}
