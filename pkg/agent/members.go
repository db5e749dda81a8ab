package agent

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// tunnelsFolder holds a folder for each enrolment of an edge.
	tunnelsFolder = "tunnels"
	// nameless is the folder of an enrolment whose credential does not say for which tunnel it is.
	nameless = "tunnel"
)

// newMembers makes the memberships, and opens their folders.
func (a *Agent) newMembers() ([]*membership, error) {
	if g := a.config.Gateway; g != nil {
		m, err := a.newMember(a.config.StateDir, a.log)
		if err != nil {
			return nil, err
		}
		m.role = &gatewayRole{Gateway: *g, table: a.table, takes: a.envoy.takes, log: a.log}
		m.identities.role = m.role
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
		dir: dir, store: store, relay: a.relay, admin: a.config.admin(), sds: a.sds, log: log,
		status:     newStatus(a.config),
		figures:    a.figures,
		identities: &identities{store: store, log: log, enrolledCA: filepath.Join(dir, enrolledCAFile)},
		subjects:   make(chan model.Subject, 1),
	}, nil
}

func (a *Agent) newEdge(e Edge, dir string, log *slog.Logger) (*membership, error) {
	m, err := a.newMember(dir, log)
	if err != nil {
		return nil, err
	}
	edge := &edgeRole{
		Edge: e, log: log, status: m.status, sight: newSight(m.status, log),
		foreign: foreignToken{path: filepath.Join(dir, foreignFile)}, near: nearness{path: filepath.Join(dir, nearFile)},
	}
	edge.dial = envoy.EdgeDial{Gateways: e.Gateways, APIServers: e.APIServers}
	m.parts = append(m.parts, edge.sight.run)
	if e.Way.Proxied() {
		listener, at, err := listenForward(dir, log)
		if err != nil {
			return nil, err
		}
		edge.dial.Gateways = []model.Endpoint{at}
		m.parts = append(m.parts, func(ctx context.Context) error { return e.Way.Forward(ctx, listener, log) })
	}
	if len(e.Targets) > 0 {
		edge.targets = targets{apiservers: slices.Concat(e.Targets, e.APIServers), gateways: slices.Concat(edge.dial.Gateways, e.Way.Addresses)}
	}
	m.role, m.identities.role = edge, edge
	return m, nil
}

// nodeOf is whom to be at the xds-server.
func (m *membership) nodeOf(subject model.Subject) func() *corev3.Node {
	return func() *corev3.Node { return m.node(subject) }
}

// folderOf is where an enrolment has its state: the folder whose identity is of the same tunnel, so that it does not matter
// which bootstrap files there are beside this one, or in which order.
func (a *Agent) folderOf(e Edge) string {
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
		folders = nil // it is made when it is needed
	}
	if id == "" && len(folders) == 1 && len(a.config.Edges) == 1 {
		return filepath.Join(root, folders[0].Name())
	}
	if id == "" {
		return filepath.Join(root, nameless)
	}
	for _, f := range folders {
		dir := filepath.Join(root, f.Name())
		if leaf, err := readLeaf(dir); err == nil && slices.Contains(leaf.DNSNames, e.Domain.TunnelID(id)) {
			return dir
		}
	}
	return filepath.Join(root, id)
}

// readLeaf reads the certificate that a folder has an identity for.
func readLeaf(dir string) (*x509.Certificate, error) {
	data, err := os.ReadFile(filepath.Join(dir, certs.LeafFile))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("reading leaf: it is no PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}
