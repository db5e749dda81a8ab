package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead/fairlead/internal/logging"
	"github.com/fairlead/fairlead/pkg/model"
)

// config is what the flags say, parsed and validated.
type config struct {
	inst                 model.Installation
	listen, healthListen string
	namespace            string
	gatewayUser          string
	stateDir             string
	rest                 *rest.Config
}

// flags are the command line.
type flags struct {
	config
	domain, public, control string
	gateways                []string
	kubeconfig              string
	logging                 logging.Flags
}

func rootCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "xds-server",
		Short: "Serve certificates and configuration to gateways and edges",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := f.logging.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := f.complete(); err != nil {
				return err
			}
			s, err := newServer(f.config, log)
			if err != nil {
				return err
			}
			return s.run(cmd.Context())
		},
	}
	f.addTo(cmd)
	return cmd
}

func (f *flags) addTo(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringVar(&f.listen, "listen", ":18000", "address for gateways and, through them, edges")
	set.StringVar(&f.healthListen, "health-listen", ":8081", "address of /healthz and /readyz, plain HTTP; 0 for none")
	set.StringVar(&f.domain, "tunnel-domain", "", "DNS domain of the installation's names, such as tunnels.example.com (required)")
	set.StringVar(&f.public, "public-address", "", "host:port at which edges reach the gateways (required)")
	set.StringVar(&f.control, "control-address", "", "host:port at which gateways reach the xds-servers (required)")
	set.StringArrayVar(&f.gateways, "gateway", nil, "a gateway, gateway-<number>, with =host:port of its public listener for the others if there are several (required, repeat)")
	set.StringVar(&f.gatewayUser, "gateway-user", "system:serviceaccount:fairlead-system:gateway", "Kubernetes user of the Pods of gateways")
	set.StringVar(&f.namespace, "namespace", "fairlead-system", "namespace of the installation's own objects")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the management cluster; without it that of the Pod")
	set.StringVar(&f.stateDir, "state-dir", "/var/lib/fairlead/xds-server", "folder for the server's own key and certificate")
	f.logging.AddTo(set)
}

// complete parses what flags give as text, and joins what is wrong with it.
func (f *flags) complete() error {
	f.inst.Domain = model.TunnelDomain(f.domain)
	var errs []error
	for _, address := range []struct {
		flag, value string
		into        *model.Endpoint
	}{
		{"--public-address", f.public, &f.inst.Public},
		{"--control-address", f.control, &f.inst.Control},
	} {
		var err error
		if *address.into, err = model.ParseEndpoint(address.value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address.flag, err))
		}
	}
	for _, s := range f.gateways {
		gateway, err := parseGateway(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("--gateway: %w", err))
		}
		f.inst.Gateways = append(f.inst.Gateways, gateway)
	}
	if len(errs) == 0 {
		errs = append(errs, f.inst.Validate())
	}
	if f.namespace == "" || f.gatewayUser == "" || f.stateDir == "" {
		errs = append(errs, errors.New("--namespace, --gateway-user and --state-dir must not be empty"))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return f.readKubeconfig()
}

// parseGateway reads gateway-<i>[=host:port].
func parseGateway(s string) (model.Gateway, error) {
	name, peer, several := strings.Cut(s, "=")
	gateway := model.Gateway{Name: name}
	var err error
	if several {
		gateway.Peer, err = model.ParseEndpoint(peer)
	}
	return gateway, err
}

func (f *flags) readKubeconfig() (err error) {
	// With an empty path this is the Pod's own configuration.
	if f.rest, err = clientcmd.BuildConfigFromFlags("", f.kubeconfig); err != nil {
		return fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	f.rest.UserAgent = "fairlead-xds-server"
	// The apiserver's own fairness limits clients. The default here, 5 requests a second, would make edges that enrol
	// together wait until nobody listens any more.
	f.rest.QPS = -1
	return nil
}
