package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/internal/logging"
	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/boot"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// reportOptions holds the flags of edge-agent report.
type reportOptions struct {
	connection options // only the fields about the connection are used
	boot       boot.Config
	logging    logging.Flags

	file      string
	detach    bool
	detachLog string
	failed    string
	succeeded bool
	log       string
	timeout   time.Duration
	readable  sync.Once
}

// reportCommand returns the command. args are the program's arguments, with which --detach starts it again.
func reportCommand(args []string) *cobra.Command {
	o := &reportOptions{}
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Report to the management cluster how this machine boots",
		Long: strings.TrimSpace(`
Follow cloud-init and kubeadm while they make this machine a Node, and report the progress to the management
cluster. It becomes the condition BootstrapReported of the Machine: the step that runs or has failed, with the
end of its log. Keys, tokens and passwords are removed before anything is sent.

It requires one file, report.yaml, from the Secret <cluster>-boot-report in the namespace of the Cluster. The
token in it can only report how machines of this Cluster boot. The file may appear after this program has
started.

It exits by itself: an hour after the boot has succeeded or failed; without that file, after --deadline, or at
once on a machine that became a Node in an earlier boot. It does not change the boot. With --detach it returns
at once and continues in the background, for a script that must not wait.

With --failed or --succeeded it reports the result of a boot that another program has followed, and exits.`),
		Example: strings.TrimSpace(`
  # In preKubeadmCommands of a KubeadmConfigSpec; /etc/fairlead/report.yaml is one of its files.
  edge-agent report --detach || true

  # In your own script, for one of its steps.
  edge-agent report --failed="partition disks" --log=/var/log/partition.log`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.connection.proxyGiven = cmd.Flags().Changed("proxy")
			if err := o.check(); err != nil {
				return err
			}
			if o.detach {
				return o.background(args)
			}
			log, err := o.logging.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), log)
		},
	}
	o.addTo(cmd)
	return cmd
}

func (o *reportOptions) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.addConnection(flags)
	o.addBoot(flags)
	o.addOnce(flags)
	flags.BoolVar(&o.detach, "detach", false, "return at once and continue in the background")
	flags.StringVar(&o.detachLog, "detach-log", "/var/log/fairlead-report.log", "log file with --detach")
	o.logging.AddTo(flags)
}

// addConnection adds the flags about the report file and the way to the gateways.
func (o *reportOptions) addConnection(flags *pflag.FlagSet) {
	flags.StringVar(
		&o.file, "report-file", "/etc/fairlead/report.yaml",
		"file from the Secret <cluster>-boot-report: gateway, tunnelDomain, token and ca",
	)
	flags.StringArrayVar(
		&o.connection.gateways, "gateway", nil,
		"host:port of the gateways' public port, instead of the file's; repeat it for several addresses",
	)
	flags.StringVar(
		&o.connection.proxy, "proxy", "",
		"URL of the HTTP proxy on the way to the gateways; empty: none (default: $HTTPS_PROXY)",
	)
	flags.StringVar(
		&o.connection.noProxy, "no-proxy", os.Getenv("NO_PROXY"),
		"hosts and networks that are reached without the proxy of --proxy",
	)
	flags.StringVar(
		&o.connection.proxyCredentials, "proxy-credentials-file", "", "file with one line user:password for the proxy",
	)
}

// addBoot adds the flags about the machine and its boot.
func (o *reportOptions) addBoot(flags *pflag.FlagSet) {
	flags.StringVar(
		&o.boot.Machine, "machine", "",
		"name of the Machine, if neither the names nor the addresses of this machine identify it",
	)
	flags.StringVar(
		&o.boot.ProviderID, "provider-id", "", "provider id of the Machine (default: from the kubelet's arguments)",
	)
	flags.DurationVar(
		&o.boot.Deadline, "deadline", 30*time.Minute, "how long a boot may take; a longer one is reported as failed",
	)
	flags.DurationVar(
		&o.boot.Repeat, "repeat", time.Hour, "how long the result is repeated, for servers and controllers that were away",
	)
	flags.StringVar(
		&o.boot.DoneFile, "done-file", "/var/lib/fairlead-report/done",
		"file that is created after a success was reported; while it exists, nothing is reported",
	)
	flags.StringVar(&o.boot.Root, "root", "/", "root folder of the files of cloud-init and kubeadm")
}

// addOnce adds the flags about a single report of a result, in place of following a boot.
func (o *reportOptions) addOnce(flags *pflag.FlagSet) {
	flags.StringVar(&o.failed, "failed", "", "report that this step failed, and exit")
	flags.BoolVar(&o.succeeded, "succeeded", false, "report that the boot succeeded, and exit")
	flags.StringVar(&o.log, "log", "", "with --failed: file with the step's log, of which the end is sent")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "with --failed or --succeeded: how long to retry")
}

// check validates the flags before anything is started.
func (o *reportOptions) check() error {
	switch {
	case o.failed != "" && o.succeeded:
		return errors.New("--failed and --succeeded exclude each other: give one of them")
	case o.log != "" && o.failed == "":
		return errors.New("--log is for --failed")
	case o.detach && (o.failed != "" || o.succeeded):
		return errors.New("--detach is for following a boot, not for --failed and --succeeded")
	case o.boot.Deadline <= 0 || o.boot.Repeat <= 0 || o.timeout <= 0:
		return errors.New("--deadline, --repeat and --timeout must be more than 0")
	}
	if _, err := endpoints("--gateway", o.connection.gateways); err != nil {
		return err
	}
	_, err := o.connection.proxyOf()
	return err
}

// background starts this program again without a terminal and in its own session, so that it outlives its caller.
func (o *reportOptions) background(args []string) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("going to the background: %w", err)
	}
	args = slices.DeleteFunc(
		slices.Clone(args), func(a string) bool { return a == "--detach" || strings.HasPrefix(a, "--detach=") },
	)
	child := exec.Command(program, args...)
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// The child must not inherit the output of this process: a script that reads that until its end would wait for the
	// child.
	if file, err := os.OpenFile(o.detachLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		defer file.Close()
		child.Stdout, child.Stderr = file, file
	}
	if err := child.Start(); err != nil {
		return fmt.Errorf("going to the background: %w", err)
	}
	return child.Process.Release()
}

func (o *reportOptions) run(ctx context.Context, log *slog.Logger) error {
	sender := &bootSender{options: o, log: log}
	o.boot.Send, o.boot.Log, o.boot.Version = sender.send, log, version.Get()
	reporter := boot.New(o.boot)
	var report *reportv1.BootReport
	switch {
	case o.failed != "":
		var err error
		if report, err = boot.Failed(o.failed, o.log); err != nil {
			return err
		}
	case o.succeeded:
		report = boot.Succeeded()
	default:
		return reporter.Run(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	return reporter.Once(ctx, report)
}

// bootSender sends reports with the content that the file has when it sends: the file may appear late, or be replaced.
type bootSender struct {
	options *reportOptions
	log     *slog.Logger
	file    edge.BootstrapFile  // of the client
	client  *enrolclient.Client // nil before the first report
}

func (s *bootSender) send(ctx context.Context, r *reportv1.BootReport) (enrolclient.Answer, error) {
	file, err := edge.ReadBootstrapFile(s.options.file)
	if errors.Is(err, fs.ErrNotExist) {
		return enrolclient.Answer{}, fmt.Errorf("%w: %w", boot.ErrNotAsked, err)
	}
	if err != nil {
		return enrolclient.Answer{}, err
	}
	if s.client == nil || file.CA != s.file.CA || file.TunnelDomain != s.file.TunnelDomain ||
		!slices.Equal(file.Gateway, s.file.Gateway) ||
		!slices.Equal(file.Gateways, s.file.Gateways) {
		if s.client, err = s.connect(file); err != nil {
			return enrolclient.Answer{}, err
		}
		s.file = file
	}
	return s.client.ReportBoot(ctx, strings.TrimSpace(file.Token), r)
}

func (s *bootSender) connect(file edge.BootstrapFile) (*enrolclient.Client, error) {
	if info, err := os.Stat(s.options.file); err == nil && info.Mode().Perm()&0o077 != 0 {
		s.options.readable.Do(func() {
			s.log.Warn("file with the token is readable by other users: set its mode to 0600", "file", s.options.file)
		})
	}
	domain := model.TunnelDomain(file.TunnelDomain)
	if err := domain.Validate(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.options.file, err)
	}
	if _, err := certs.Bundle(file.CA).Roots(); err != nil {
		return nil, fmt.Errorf("reading %s: ca: %w", s.options.file, err)
	}
	addresses := s.options.connection.gateways
	if len(addresses) == 0 {
		addresses = slices.Concat(file.Gateway, file.Gateways)
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("reading %s: it names no gateway: set --gateway", s.options.file)
	}
	gateways, err := endpoints("address of the gateways", addresses)
	if err != nil {
		return nil, err
	}
	proxy, err := s.options.connection.proxyOf()
	if err != nil {
		return nil, err
	}
	return &enrolclient.Client{
		Dialer: &dial.Dialer{Addresses: gateways, Proxy: proxy},
		Domain: domain,
		Trust:  certs.Bundle(file.CA),
	}, nil
}
