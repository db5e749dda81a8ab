package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-base/version"
)

// A config is the configuration of a machine. Its first process reads it again from disk/run/machine.
type config struct {
	Dir        string
	Hostname   string
	Address    string
	ProviderID string
	Kubelet    string // version that the kubelet reports
	MetaData   map[string]string
	Programs   map[string]string // name, or name:tag, to path on the host
}

// Where a machine finds the files of this program.
const (
	ownDir       = "/run/machine"
	configFile   = ownDir + "/config.json"
	userDataFile = ownDir + "/user-data"
	programDir   = "/usr/local/bin"
)

// runMachine starts the machine's first process in its own namespaces and waits until it exits.
func runMachine(args []string) error {
	c, userData, err := parseConfig(args)
	if err != nil {
		return err
	}
	// Report errors now, and not in a log inside of the machine.
	if _, err := parseUserData(userData, c.MetaData); err != nil {
		return fmt.Errorf("reading the user data: %w", err)
	}
	if err := prepareDisk(c, userData); err != nil {
		return fmt.Errorf("preparing the disk of %s: %w", c.Hostname, err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	cmd := exec.Command("/proc/self/exe", "init", c.disk())
	cmd.Args[0] = "machine"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS,
		Setpgid:    true, // this process handles Ctrl-C itself
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the machine's first process (as root?): %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return exitCode(max(exit.ExitCode(), 1))
			}
			return err
		}
	}
}

// pairs is a flag of the form KEY=VALUE that may be repeated.
type pairs map[string]string

func (p pairs) String() string { return "" }

func (p pairs) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" || value == "" {
		return fmt.Errorf("want KEY=VALUE, got %q", text)
	}
	p[key] = value
	return nil
}

func parseConfig(args []string) (config, []byte, error) {
	c := config{MetaData: map[string]string{}, Programs: map[string]string{}}
	flags := flag.NewFlagSet("machine run", flag.ContinueOnError)
	flags.StringVar(&c.Dir, "dir", "", "the machine's own folder; its files are in disk/")
	flags.StringVar(&c.Hostname, "hostname", "", "host name of the machine and name of its Node")
	flags.StringVar(&c.Address, "address", "", "its IP address in the network namespace that this program runs in")
	flags.StringVar(&c.ProviderID, "provider-id", "", "providerID of the Node")
	flags.StringVar(
		&c.Kubelet, "kubelet-version", version.Get().GitVersion, "version of Kubernetes that the kubelet says it has",
	)
	userData := flags.String("user-data", "", "file with the bootstrap data, a cloud-config")
	flags.Var(pairs(c.MetaData), "meta-data", "KEY=VALUE of the instance's metadata (repeatable)")
	flags.Var(
		pairs(c.Programs), "program",
		"NAME=PATH of a program in /usr/local/bin; NAME:TAG is for images with that tag alone (repeatable)",
	)
	if err := flags.Parse(args); err != nil {
		return c, nil, exitCode(2)
	}
	data, err := c.complete(*userData)
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine run:", err)
		return c, nil, exitCode(2)
	}
	return c, data, nil
}

// complete checks the flags, sets defaults and reads the user data.
func (c *config) complete(userData string) ([]byte, error) {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("--dir is missing"))
	}
	if problems := validation.IsDNS1123Subdomain(c.Hostname); len(problems) > 0 {
		errs = append(errs, fmt.Errorf("--hostname %q: %s", c.Hostname, strings.Join(problems, ", ")))
	}
	if _, err := netip.ParseAddr(c.Address); err != nil {
		errs = append(errs, fmt.Errorf("--address: %w", err))
	}
	data, err := os.ReadFile(userData)
	if err != nil {
		errs = append(errs, fmt.Errorf("--user-data: %w", err))
	}
	for name, path := range c.Programs {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			real, err = filepath.Abs(real)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--program %s: %w", name, err))
		}
		if strings.Contains(name, "/") {
			errs = append(errs, fmt.Errorf("--program %s: a name, not a path", name))
		}
		c.Programs[name] = real
	}
	for _, key := range []string{"local_hostname", "hostname", "instance_id"} {
		if c.MetaData[key] == "" {
			c.MetaData[key] = c.Hostname
		}
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		errs = append(errs, err)
	}
	return data, errors.Join(errs...)
}

func (c config) disk() string { return filepath.Join(c.Dir, "disk") }

func readConfig(path string) (config, error) {
	var c config
	data, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(data, &c)
}
