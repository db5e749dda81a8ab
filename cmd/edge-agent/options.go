package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/internal/logging"
	"github.com/fairlead/fairlead/pkg/agent"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// options holds the flags. A flag overrides the value in the bootstrap file.
type options struct {
	logging    logging.Flags
	log        *slog.Logger
	agent      agent.Config
	bootstraps []string
	gateways   []string

	// In place of a bootstrap file, or of values in the only one.
	id, domain, tokenFile, caFile, podTokenFile string

	proxy, noProxy, proxyCredentials string
	proxyGiven                       bool // even as "", which means no proxy

	apiservers, targets, listen []string
	socket                      string // of the apiserver beside this agent
}

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.addEnrolment(flags)
	o.addProxy(flags)
	o.addTargets(flags)
	flags.BoolVar(
		&o.agent.External,
		"envoy-external",
		false,
		`Envoy runs in another container that shares the runtime folder: see "edge-agent bootstrap"`,
	)
	o.agent.AddFlags(flags, stateDir)
	o.logging.AddTo(flags)
}

// addEnrolment adds the flags about bootstrap files, and about values in place of theirs.
func (o *options) addEnrolment(flags *pflag.FlagSet) {
	flags.StringArrayVar(
		&o.bootstraps, "bootstrap", nil,
		"bootstrap file: id, gateway, tunnelDomain, token and ca; repeat it for several Clusters",
	)
	flags.StringArrayVar(
		&o.gateways, "gateway", nil,
		"host:port of the gateways' public port, instead of the file's; repeat it for several addresses",
	)
	flags.StringVar(
		&o.id, "id", "",
		"id of the tunnel, instead of the file's; an identity of another tunnel in the state folder is ignored",
	)
	flags.StringVar(&o.domain, "tunnel-domain", "", "tunnel domain, instead of the file's")
	flags.StringVar(&o.tokenFile, "token-file", "", "file with the bootstrap token, instead of the bootstrap file's")
	flags.StringVar(
		&o.caFile, "ca-file", "", "file with the CA of the control channel (PEM), instead of the bootstrap file's",
	)
	flags.StringVar(
		&o.podTokenFile, "service-account-token-file", "",
		"file with a token of the Pod's ServiceAccount for the audience fairlead.dev/<tunnel id>, which is tried before the "+
			"bootstrap token",
	)
}

// addProxy adds the flags about the HTTP proxy on the way to the gateways.
func (o *options) addProxy(flags *pflag.FlagSet) {
	flags.StringVar(
		&o.proxy, "proxy", "", "URL of the HTTP proxy on the way to the gateways; empty: none (default: $HTTPS_PROXY)",
	)
	flags.StringVar(
		&o.noProxy, "no-proxy", os.Getenv("NO_PROXY"), "hosts and networks that are reached without the proxy of --proxy",
	)
	flags.StringVar(
		&o.proxyCredentials, "proxy-credentials-file", "", "file with one line user:password for the proxy; read at each use",
	)
}

// addTargets adds the flags about the apiservers that are dialled.
func (o *options) addTargets(flags *pflag.FlagSet) {
	flags.StringArrayVar(
		&o.apiservers, "local-apiserver", nil,
		"host:port of an apiserver nearby, dialled before those that the Tunnel names; repeat it for several",
	)
	flags.StringArrayVar(
		&o.targets, "allow-target", nil,
		"host:port of an apiserver or named target that may be dialled, or CIDR[:port] of destinations in a network; repeat "+
			"it for several (default: what the Tunnel and the RemoteNetwork name)",
	)
	flags.StringArrayVar(
		&o.listen, "apiserver-listen", nil,
		"IP:port at which machines in the network reach the apiserver of their Cluster; repeat it for several (default: "+
			"none)",
	)
	flags.StringVar(
		&o.socket, "egress-socket", defaultSocket,
		"path of the Unix socket for the apiserver beside this agent, if the bootstrap file has role: egress",
	)
}

// defaultSocket is the socket to which a generated EgressSelectorConfiguration connects.
const defaultSocket = "/run/fairlead/egress.sock"

// edges returns the configurations of the enrolments. It checks what must exist at the start. Credentials are read when
// they are needed, because an edge with a leaf on disk needs none.
func (o *options) edges() ([]edge.Config, error) {
	if len(o.bootstraps) > 1 && o.id+o.domain+o.tokenFile+o.caFile+o.podTokenFile != "" {
		return nil, errors.New(
			"--id, --tunnel-domain, --token-file, --ca-file and --service-account-token-file are for one tunnel: remove them " +
				"with several --bootstrap files",
		)
	}
	proxy, err := o.proxyOf()
	if err != nil {
		return nil, err
	}
	paths := o.bootstraps
	if len(paths) == 0 {
		paths = []string{""}
	}
	var edges []edge.Config
	for _, path := range paths {
		edge, err := o.edge(path, proxy)
		if err != nil {
			return nil, err
		}
		if len(o.gateways) > 0 && len(edges) > 0 && edge.Domain != edges[0].Domain {
			return nil, fmt.Errorf(
				"--gateway is for one installation, the bootstrap files are of %s and %s", edges[0].Domain, edge.Domain,
			)
		}
		edges = append(edges, edge)
	}
	return edges, o.checkListening(edges)
}

// checkListening returns an error if two enrolments would listen at the same place.
func (o *options) checkListening(edges []edge.Config) error {
	count := map[model.Role]int{}
	for _, e := range edges {
		count[e.Role]++
	}
	switch {
	case count[model.RoleEgress] > 1:
		return errors.New("two bootstrap files have role: egress: run an agent beside each apiserver")
	case count[model.RoleEdge] > 1 && len(o.listen) > 0:
		return errors.New("--apiserver-listen is for one network: give only its bootstrap file")
	}
	return nil
}

// joined returns the configuration for a file that was given to a running agent. Flags about this machine and its
// network apply to it; flags about bootstrap files do not.
func (o *options) joined(path string) (edge.Config, error) {
	j := options{
		log:              o.log,
		agent:            o.agent,
		proxy:            o.proxy,
		noProxy:          o.noProxy,
		proxyCredentials: o.proxyCredentials,
		proxyGiven:       o.proxyGiven,
		apiservers:       o.apiservers,
		targets:          o.targets,
		listen:           o.listen,
		socket:           o.socket,
	}
	proxy, err := j.proxyOf()
	if err != nil {
		return edge.Config{}, err
	}
	return j.edge(path, proxy)
}

func (o *options) edge(path string, proxy dial.Proxy) (edge.Config, error) {
	file, err := o.file(path)
	if err != nil {
		return edge.Config{}, err
	}
	if file.unusable != nil {
		o.log.Warn(
			"bootstrap file is not usable: starting with its last content, which suffices for an enrolled edge", "file", path,
			"error", file.unusable,
		)
	}
	var unwritten sync.Once
	config := edge.Config{
		Role: cmp.Or(file.Role, model.RoleEdge), Domain: model.TunnelDomain(file.TunnelDomain),
		Credential: func() (edge.Credential, error) { return o.credential(path, &unwritten) },
	}
	gateways, err := endpoints("address of the gateways", file.addresses())
	if err != nil {
		return edge.Config{}, err
	}
	config.Dialer = &dial.Dialer{Addresses: gateways, Proxy: proxy}
	if len(gateways) > 1 || len(o.gateways) > 0 {
		config.Gateways = gateways // otherwise Envoy follows the installation if its address changes
	}
	if config.APIServers, err = endpoints("--local-apiserver", o.apiservers); err != nil {
		return edge.Config{}, err
	}
	if config.Allowed, err = edge.ParseTargets(o.targets); err != nil {
		return edge.Config{}, fmt.Errorf("reading --allow-target: %w", err)
	}
	if config.Role == model.RoleEgress {
		config.Socket = o.socket
		return config, nil
	}
	if config.Listen, err = endpoints("--apiserver-listen", o.listen); err != nil {
		return edge.Config{}, err
	}
	for _, at := range config.Listen {
		if err := envoy.CheckListen(at); err != nil {
			return edge.Config{}, fmt.Errorf("reading --apiserver-listen: %w", err)
		}
	}
	return config, nil
}

func endpoints(what string, addresses []string) ([]model.Endpoint, error) {
	var all []model.Endpoint
	for _, a := range addresses {
		e, err := model.ParseEndpoint(a)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", what, err)
		}
		all = append(all, e)
	}
	return all, nil
}

func (o *options) proxyOf() (dial.Proxy, error) {
	var credentials func() (user, password string, err error)
	if o.proxyCredentials != "" {
		credentials = dial.CredentialsFile(o.proxyCredentials)
	}
	switch {
	case !o.proxyGiven:
		return dial.ProxyFromEnvironment(credentials)
	case o.proxy == "":
		return dial.Proxy{}, nil
	}
	return dial.ParseProxy(o.proxy, o.noProxy, credentials)
}

// file returns a bootstrap file, overridden by the flags. If the file is missing or invalid, it returns the stored copy
// instead, if that is valid, and sets unusable. With an empty path it returns the flags alone.
func (o *options) file(path string) (bootstrapFile, error) {
	if path == "" {
		f := o.override(edge.BootstrapFile{})
		return f, f.check()
	}
	fromFile, err := edge.ReadBootstrapFile(path)
	f := o.override(fromFile)
	if err == nil {
		err = f.check()
	}
	if err == nil {
		return f, nil
	}
	fromFile, unknown := knownOf(o.agent.StateDir, path).load()
	if f = o.override(fromFile); unknown != nil || f.check() != nil {
		return bootstrapFile{}, err
	}
	f.unusable = err
	return f, nil
}

// override replaces values of a file by those of the flags.
func (o *options) override(fromFile edge.BootstrapFile) bootstrapFile {
	file := bootstrapFile{BootstrapFile: fromFile, fromFile: fromFile}
	if o.id != "" {
		file.ID = o.id
	}
	if len(o.gateways) > 0 {
		file.Gateway, file.Gateways = o.gateways, nil
	}
	if o.domain != "" {
		file.TunnelDomain = o.domain
	}
	return file
}

// credential reads the credential, and stores a copy of the file. If that fails, it logs a warning once, which
// unwritten ensures.
func (o *options) credential(path string, unwritten *sync.Once) (edge.Credential, error) {
	file, err := o.file(path)
	if err != nil {
		return edge.Credential{}, err
	}
	if path != "" && file.unusable == nil {
		if err := knownOf(o.agent.StateDir, path).save(file.fromFile); err != nil {
			unwritten.Do(func() {
				o.log.Warn("cannot save content of the bootstrap file: without the file this edge cannot start again", "error", err)
			})
		}
	}
	for path, value := range map[string]*string{o.tokenFile: &file.Token, o.caFile: &file.CA} {
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return edge.Credential{}, fmt.Errorf("reading credential: %w", err)
		}
		*value = string(data)
	}
	credential := edge.Credential{Token: strings.TrimSpace(file.Token), ID: file.ID, CA: []byte(file.CA)}
	if o.podTokenFile == "" {
		return credential, nil
	}
	podToken, err := os.ReadFile(o.podTokenFile)
	if err != nil && credential.Token == "" {
		return edge.Credential{}, fmt.Errorf("reading ServiceAccount token: %w", err)
	}
	credential.PodToken = strings.TrimSpace(string(podToken)) // empty if it cannot be read: the bootstrap token remains
	return credential, nil
}
