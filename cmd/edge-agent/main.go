// Command edge-agent runs an edge: it enrols with a bootstrap token, keeps its certificate valid, and runs the Envoy
// that dials the gateways.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/logging"
	"github.com/fairlead/fairlead/pkg/agent"
	"github.com/fairlead/fairlead/pkg/model"
)

func main() { command.Main(run) }

// run is the whole program; the result is its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "edge-agent", Short: "Runs the edge of a Fairlead tunnel"}
	root.AddCommand(runCommand())
	return command.Run(ctx, root, args, stdout, stderr)
}

// options are the flags. What is given as a flag wins over the bootstrap file.
type options struct {
	logging   logging.Flags
	agent     agent.Config
	bootstrap string
	id        string
	gateway   string
	domain    string
	tokenFile string
	caFile    string
}

func runCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Enrol, and run Envoy until SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := o.logging.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.agent.Role, err = o.role(); err != nil {
				return err
			}
			a, err := agent.New(o.agent, log)
			if err != nil {
				return err
			}
			return a.Run(cmd.Context())
		},
	}
	o.addTo(cmd)
	return cmd
}

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.bootstrap, "bootstrap", "", "bootstrap file: id, gateway, tunnelDomain, token and ca; read again at each enrolment")
	flags.StringVar(&o.id, "id", "", "id of the tunnel, instead of the file's; an identity of another tunnel in the state folder is not used")
	flags.StringVar(&o.gateway, "gateway", "", "host:port of the gateways' public port, instead of the file's")
	flags.StringVar(&o.domain, "tunnel-domain", "", "tunnel domain, instead of the file's")
	flags.StringVar(&o.tokenFile, "token-file", "", "file with the bootstrap token, instead of the bootstrap file's")
	flags.StringVar(&o.caFile, "ca-file", "", "file with the CA of the control channel (PEM), instead of the bootstrap file's")
	o.agent.AddFlags(flags, "/var/lib/fairlead/edge")
	o.logging.AddTo(flags)
}

// role checks what has to be there at the start. The credential is read when it is needed: a leaf on disk does without.
func (o *options) role() (agent.Edge, error) {
	file, err := o.file()
	if err != nil {
		return agent.Edge{}, err
	}
	domain := model.TunnelDomain(file.TunnelDomain)
	if err := domain.Validate(); err != nil {
		return agent.Edge{}, err
	}
	if file.ID != "" {
		if err := model.ValidateID(file.ID); err != nil {
			return agent.Edge{}, err
		}
	}
	if file.Gateway == "" {
		return agent.Edge{}, errors.New("there is neither --gateway nor a bootstrap file with a gateway")
	}
	gateway, err := model.ParseEndpoint(file.Gateway)
	if err != nil {
		return agent.Edge{}, fmt.Errorf("reading address of the gateway: %w", err)
	}
	return agent.Edge{Domain: domain, Gateway: gateway, Credential: o.credential}, nil
}

func (o *options) file() (agent.BootstrapFile, error) {
	var file agent.BootstrapFile
	if o.bootstrap != "" {
		var err error
		if file, err = agent.ReadBootstrapFile(o.bootstrap); err != nil {
			return agent.BootstrapFile{}, err
		}
	}
	if o.id != "" {
		file.ID = o.id
	}
	if o.gateway != "" {
		file.Gateway = o.gateway
	}
	if o.domain != "" {
		file.TunnelDomain = o.domain
	}
	return file, nil
}

func (o *options) credential() (agent.EdgeCredential, error) {
	file, err := o.file()
	if err != nil {
		return agent.EdgeCredential{}, err
	}
	for path, value := range map[string]*string{o.tokenFile: &file.Token, o.caFile: &file.CA} {
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return agent.EdgeCredential{}, fmt.Errorf("reading credential: %w", err)
		}
		*value = string(data)
	}
	return agent.EdgeCredential{Token: strings.TrimSpace(file.Token), ID: file.ID, CA: []byte(file.CA)}, nil
}
