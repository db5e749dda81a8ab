package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/fairlead/fairlead/internal/addresses"
	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// tunnelsFolder holds a folder for each enrolment of an edge.
	tunnelsFolder = "tunnels"
	// nameless is the folder of an enrolment whose credential does not name its tunnel.
	nameless = "tunnel"
)

// newMembers returns the memberships of the configuration, and opens their folders.
func (a *Agent) newMembers() ([]*membership, error) {
	if a.gateway != nil {
		m, err := a.newMember(a.config.StateDir, a.log)
		if err != nil {
			return nil, err
		}
		m.setRole(a.gateway.Role(a.envoy.GatewayState))
		return []*membership{m}, nil
	}
	var members []*membership
	taken := map[string]bool{}
	for _, e := range a.config.Edges {
		dir := a.folderOf(e)
		if taken[dir] {
			return nil, fmt.Errorf("opening %s: two bootstrap files are for the same tunnel", dir)
		}
		taken[dir] = true
		log := a.log
		if len(a.config.Edges) > 1 {
			log = log.With("tunnel", filepath.Base(dir))
		}
		m, err := a.newEdge(e, dir, log)
		if err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return members, nil
}

func (a *Agent) newMember(dir string, log *slog.Logger) (*membership, error) {
	store, err := certs.OpenStore(dir)
	if err != nil {
		return nil, err
	}
	return &membership{
		dir: dir, store: store, xds: a.xds, admin: a.config.admin(), sds: a.sds, claims: &a.claims, log: log,
		status:   status.New(status.Form(a.config.External)),
		figures:  a.figures,
		subjects: make(chan model.Subject, 1),
	}, nil
}

func (m *membership) setRole(r role) {
	m.role, m.identities = r, identity.NewRenewer(r, m.store, m.dir, m.log)
	m.identities.Admit = func(s model.Subject) error { return m.claims.check(m.dir, s.Node) }
}

func (a *Agent) newEdge(e edge.Config, dir string, log *slog.Logger) (*membership, error) {
	m, err := a.newMember(dir, log)
	if err != nil {
		return nil, err
	}
	m.status.SetAddresses(addresses.OfMachine())
	edge, err := edge.NewRole(e, dir, m.status, log)
	if err != nil {
		return nil, err
	}
	m.parts = append(m.parts, edge.Run)
	m.renewal = &a.renewal
	m.setRole(edge)
	return m, nil
}

// nodeOf returns the node for requests to the xds-server.
func (m *membership) nodeOf(subject model.Subject) func() *corev3.Node {
	return func() *corev3.Node { return withVersion(m.Node(subject)) }
}

// withVersion adds the agent's name and version, which operators can query at an xds-server.
func withVersion(node *corev3.Node) *corev3.Node {
	node.UserAgentName = "fairlead"
	node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: version.Get()}
	return node
}

// folderOf returns the folder of an enrolment: the one with an identity of the same tunnel. So the number and order of
// bootstrap files do not matter.
func (a *Agent) folderOf(e edge.Config) string {
	if dir := a.joinedFolderOf(e); dir != "" {
		return dir
	}
	root := filepath.Join(a.config.StateDir, tunnelsFolder)
	var id string
	if credential, err := e.Credential(); err == nil {
		id = credential.ID
	}
	folders, err := os.ReadDir(root)
	if err != nil {
		folders = nil // it is created when needed
	}
	if id == "" && len(folders) == 1 && len(a.config.Edges) == 1 {
		return filepath.Join(root, folders[0].Name())
	}
	if id == "" {
		return filepath.Join(root, nameless)
	}
	for _, f := range folders {
		dir := filepath.Join(root, f.Name())
		if leaf, err := identity.ReadLeaf(dir); err == nil && slices.Contains(leaf.DNSNames, e.DNSName(id)) {
			return dir
		}
	}
	return filepath.Join(root, id)
}
