package lab

import (
	"context"
	"strings"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// StartSiteAPIServer starts an etcd and a kube-apiserver in a site, with additional names in its serving certificate,
// and waits until it is ready.
func (l *Lab) StartSiteAPIServer(ctx context.Context, site *netns.Site, name string,
	names ...string,
) (*kube.SiteAPIServer, error) {
	return kube.StartSiteAPIServer(ctx, l.Workspace, site, l.options.certificatesEnd(), name, names...)
}

// Up restarts an apiserver whose process was killed. It doesn't wait for it.
func (l *Lab) Up(ctx context.Context, a *kube.APIServer) error {
	process, err := l.Restart(a.Process)
	if err != nil {
		return err
	}
	a.Process = process
	return nil
}

// Program returns the path of one of our own programs.
func (l *Lab) Program(name string) string { return l.Parts.OwnPath(name) }

// Root returns the repository's folder.
func (l *Lab) Root() string { return l.Parts.Root }

// LoseGateway makes a gateway's address swallow every packet of the management network, until back is called.
func (l *Lab) LoseGateway(ctx context.Context, i int) (back func(context.Context) error, err error) {
	address := l.Network.InsideAddress(i).String()
	back = func(ctx context.Context) error {
		return l.Network.Management.IP(ctx, "neighbour", "delete", address, "dev", "mgmt")
	}
	return back, l.Network.Management.IP(ctx, "neighbour", "replace", address, "lladdr", "02:00:00:00:00:fe", "dev",
		"mgmt", "nud", "permanent")
}

// Restart restarts a process that has ended.
func (l *Lab) Restart(p *proc.Process) (*proc.Process, error) {
	next, err := proc.Start(p.Spec)
	if err != nil {
		return nil, err
	}
	l.OnClose(func(context.Context) { next.Kill() })
	return next, nil
}

// InspectAddress returns the address in the management network where an xds-server of the lab serves inspection.
func InspectAddress(i int) string { return netns.HostPort("127.0.0.1", 9460+i) }

// Inspection returns the flag of fairlead with the addresses of all xds-servers, which have no Pods here.
func (l *Lab) Inspection() string {
	var all []string
	for i := range l.XDSServers {
		all = append(all, InspectAddress(i))
	}
	return "--xds-server=" + strings.Join(all, ",")
}

// PageAddress returns the address in the management network where an xds-server of a lab with pages serves the status
// page.
func PageAddress(i int) string { return netns.HostPort("127.0.0.1", 9440+i) }
