package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// joined is an edge of TestEdgesServeWithoutTheControlPlane.
type joined struct {
	agent *lab.Agent
	of    *world.Member
	node  string
	gone  bool // was stopped permanently
}

// prepared holds the Clusters and edges that are made before the outage.
type prepared struct {
	all []*joined

	cached, corrupt, crash, drain, api, fades *world.Member
	cachedEdge, corruptEdge, crashEdge        *lab.Agent
	drainEdges                                [2]*lab.Agent
	drainSites                                [2]*netns.Site
	apiEdge                                   *lab.Agent
	apiSite                                   *netns.Site // of the first of its apiservers
	standIns                                  []*world.StandIn
	fadeEdge                                  *lab.Agent
	crashNode                                 string
}

const memoryLimit = "192Mi"

func (o *outage) prepare(t *testing.T) *prepared {
	t.Helper()
	p := &prepared{}
	join := func(name string, spec lab.EdgeSpec) (*world.Member, *lab.Agent) {
		m := o.Member(t, name, nil)
		spec.Name = "edge-" + name
		return m, p.add(t, o.StartEdge(t, spec, m), m)
	}
	p.cached, p.cachedEdge = join("cached", lab.EdgeSpec{Flags: []string{"--envoy-memory=" + memoryLimit}})
	p.corrupt, p.corruptEdge = join("corrupt", lab.EdgeSpec{})
	p.crash, p.crashEdge = join("crash", lab.EdgeSpec{})
	p.fades, p.fadeEdge = join("fades", lab.EdgeSpec{})
	p.crashNode = p.all[2].node
	p.prepareDrain(t, o)
	p.prepareAPIServers(t, o)
	p.all = append(p.all, &joined{agent: o.edge, of: o.oslo, node: world.Steal(t, o.edge).Subject.Node})
	for _, m := range []*world.Member{p.cached, p.corrupt, p.crash, p.fades, p.drain, p.api} {
		must(t, proc.Wait(t.Context(), 2*patience, m.Works))
	}
	return p
}

func (p *prepared) add(t *testing.T, agent *lab.Agent, m *world.Member) *lab.Agent {
	t.Helper()
	p.all = append(p.all, &joined{agent: agent, of: m, node: world.Steal(t, agent).Subject.Node})
	return agent
}

// prepareDrain makes a Cluster with two edges in two sites.
func (p *prepared) prepareDrain(t *testing.T, o *outage) {
	t.Helper()
	p.drain = o.Member(t, "drain", nil)
	for i := range p.drainEdges {
		site, err := o.AddSite(t.Context(), fmt.Sprintf("drain-%d", i))
		must(t, err)
		p.drainSites[i] = site
		p.drainEdges[i] = p.add(
			t, o.StartEdge(t, lab.EdgeSpec{Name: fmt.Sprintf("edge-drain-%d", i), Site: site.Namespace}, p.drain), p.drain,
		)
	}
}

// prepareAPIServers makes a Cluster with three apiservers, which are tried in order. The first is in a site whose
// network can be disconnected.
func (p *prepared) prepareAPIServers(t *testing.T, o *outage) {
	t.Helper()
	site, err := o.AddSite(t.Context(), "rack")
	must(t, err)
	p.apiSite = site
	p.standIns = []*world.StandIn{
		o.StandIn(t, "api", site.Namespace, site.Address),
		o.StandIn(
			t, "api", o.Network.Workload, o.Network.WorkloadAddress(),
		), o.StandIn(t, "api", o.Network.Workload, o.Network.WorkloadAddress()),
	}
	p.api = o.MemberAt(
		t, "api", p.standIns[0], apiServer(p.standIns[0].Endpoint, p.standIns[1].Endpoint, p.standIns[2].Endpoint),
	)
	p.apiEdge = p.add(t, o.StartEdge(t, lab.EdgeSpec{Name: "edge-api"}, p.api), p.api)
}

// tunnelSockets counts the connections of an edge's Envoy to the gateways' public port.
func tunnelSockets(a *lab.Agent) (int, error) {
	pid, err := a.EnvoyPID()
	if err != nil {
		return 0, err
	}
	inodes := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return 0, err
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "socket:[") {
			inodes[strings.Trim(target[len("socket:"):], "[]")] = true
		}
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(table)) {
		// Fields: number, local, remote, state (01: established), …; inode is the tenth.
		f := strings.Fields(line)
		if len(f) > 9 && f[3] == "01" && strings.HasSuffix(f[2], fmt.Sprintf(":%04X", netns.PublicPort)) && inodes[f[9]] {
			n++
		}
	}
	return n, nil
}
