package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// errInUse is temporary: it ends when the bootstrap file of the command line can be read again, and is known to be of
// the same tunnel.
var errInUse = errors.New(
	"joining tunnel: a bootstrap file of the command line uses its folder, and cannot be read or belongs to another " +
		"tunnel",
)

// loadJoined reads the tunnels that were joined earlier. An unreadable one does not affect the others.
func (a *Agent) loadJoined() (known []xdsproxy.Upstream) {
	names, err := a.joinedNames()
	if err != nil {
		a.log.Error("cannot read joined tunnels", "error", err)
		return nil
	}
	a.removeLeft()
	for _, name := range names {
		j := a.newJoined(name, nil)
		if j.member != nil {
			known = append(known, j.member.recover()...)
		}
		a.joined = append(a.joined, j)
	}
	return known
}

// removeLeft removes the keys of tunnels that were left while no agent ran. It removes nothing while the tunnel of a
// bootstrap file of the command line is not known, because a key may belong to it.
func (a *Agent) removeLeft() {
	entries, err := os.ReadDir(a.joinedRoot())
	if err != nil || a.config.Joined == nil {
		return
	}
	for _, e := range a.config.Edges {
		if _, err := e.Credential(); err != nil {
			return
		}
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if _, err := os.Lstat(filepath.Join(a.joinedRoot(), e.Name()+edge.JoinedSuffix)); errors.Is(err, os.ErrNotExist) {
			a.remove(e.Name())
		}
	}
}

// remove removes the folder of a tunnel that was left, unless a bootstrap file of the command line has taken it over.
func (a *Agent) remove(name string) {
	dir := filepath.Join(a.joinedRoot(), name)
	if a.uses(dir) {
		return
	}
	a.claims.keep(dir, "")
	a.log.Info("tunnel left", "tunnel", name)
	if err := os.RemoveAll(dir); err != nil {
		a.log.Error("cannot remove folder of a left tunnel", "tunnel", name, "error", err)
	}
}

// uses reports whether a membership of the configuration has its state in dir.
func (a *Agent) uses(dir string) bool {
	return slices.ContainsFunc(a.members, func(m *membership) bool { return m.dir == dir })
}

// joinedNames returns the names of the joined tunnels, at most edge.MaxJoined. Two commands at the same time may join
// more: a tunnel that runs keeps its place.
func (a *Agent) joinedNames() ([]string, error) {
	if a.config.Joined == nil {
		return nil, nil
	}
	names, err := edge.JoinedNames(a.joinedRoot())
	rank := func(name string) int {
		if slices.ContainsFunc(a.joined, func(j *joined) bool { return j.name == name }) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(rank(x), rank(y)) })
	return names[:min(len(names), edge.MaxJoined)], err
}

// newJoined returns the membership of a file. before is the previous attempt, or nil.
func (a *Agent) newJoined(name string, before *joined) *joined {
	j := &joined{name: name}
	j.err = a.openJoined(j)
	said := false
	if before != nil && before.hash == j.hash {
		j.tries = before.tries
		said = before.err != nil && j.err != nil && before.err.Error() == j.err.Error()
	}
	if j.err == nil {
		return j
	}
	j.wait()
	if !said {
		a.log.Error("cannot join a tunnel, retrying", "tunnel", name, "error", j.err)
	}
	return j
}

func (a *Agent) openJoined(j *joined) error {
	path := filepath.Join(a.joinedRoot(), j.name+edge.JoinedSuffix)
	file, hash, err := readJoined(path)
	if err != nil {
		return err
	}
	j.hash, j.startup = hash, file.StartupFields()
	if err := file.Check(); err != nil {
		return err
	}
	if j.of = a.configured(file); j.of != nil {
		return nil
	}
	dir := filepath.Join(a.joinedRoot(), j.name)
	if a.uses(dir) {
		return errInUse
	}
	edge, err := a.config.Joined(path)
	if err != nil {
		return err
	}
	m, err := a.newEdge(edge, dir, a.log.With("tunnel", j.name))
	if err != nil {
		return err
	}
	m.joined = j.name
	j.member = m
	return nil
}

func readJoined(path string) (edge.BootstrapFile, string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return edge.BootstrapFile{}, "", fmt.Errorf("reading bootstrap file: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > edge.MaxBootstrapFile {
		return edge.BootstrapFile{}, "", fmt.Errorf(
			"reading bootstrap file: %s is not a regular file, or has more than %d bytes", path, edge.MaxBootstrapFile,
		)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return edge.BootstrapFile{}, "", fmt.Errorf("reading bootstrap file: %w", err)
	}
	file, err := edge.ParseBootstrapFile(data)
	return file, edge.Hash(data), err
}

// configured returns the membership of a bootstrap file of the command line for the same tunnel; nil: there is none.
func (a *Agent) configured(file edge.BootstrapFile) *membership {
	for _, m := range a.members {
		e, ok := m.role.(*edge.Role)
		if !ok {
			continue
		}
		credential, err := e.Credential()
		if err != nil {
			continue
		}
		other := edge.BootstrapFile{ID: credential.ID, TunnelDomain: string(e.Domain), CA: string(credential.CA)}
		if other.ID == "" {
			subject, _ := m.current()
			other.ID = subject.ID
		}
		if file.Same(other) ||
			(file.ID == other.ID && file.TunnelDomain == other.TunnelDomain && m.store.Bundle().Overlaps(certs.Bundle(
				file.CA))) {
			return m
		}
	}
	return nil
}

// joinedFolderOf returns the folder with the identity of a tunnel that this edge had joined before its bootstrap file
// was named on the command line, even if it was left since; empty: none. So replacing a bootstrap file after a move
// does not enrol again.
func (a *Agent) joinedFolderOf(e edge.Config) string {
	credential, err := e.Credential()
	if err != nil || credential.ID == "" || a.config.Joined == nil {
		return ""
	}
	entries, err := os.ReadDir(a.joinedRoot())
	if err != nil {
		return ""
	}
	wanted := edge.BootstrapFile{ID: credential.ID, TunnelDomain: string(e.Domain), CA: string(credential.CA)}
	for _, entry := range entries {
		dir := filepath.Join(a.joinedRoot(), entry.Name())
		leaf, err := identity.ReadLeaf(dir)
		if err != nil || !slices.Contains(leaf.DNSNames, e.DNSName(credential.ID)) {
			continue
		}
		if file, _, err := readJoined(dir + edge.JoinedSuffix); err == nil && file.Same(wanted) ||
			identity.Trusts(dir, credential.CA) {
			return dir
		}
	}
	return ""
}
