package agent

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/fairlead/fairlead/pkg/certs"
)

// claims are the node names of an agent's memberships. Each installation chooses the names of its nodes, and Envoy's
// secrets and resources are kept by node name. So a name belongs to the first membership that uses it, until it is
// released. The zero value is ready for use. It is safe for concurrent use.
type claims struct {
	mu      sync.Mutex
	folders map[string]string // the folder of the membership, by node name
}

// check returns an error if the node name belongs to a membership with another folder.
func (c *claims) check(folder, node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conflict(folder, node)
}

func (c *claims) conflict(folder, node string) error {
	if owner, ok := c.folders[node]; ok && owner != folder {
		return fmt.Errorf(
			"using the certificate of %s: %w: another tunnel of this agent has that node name", node, certs.ErrRefused,
		)
	}
	return nil
}

// claim gives the node name to the membership with this folder, or returns the error of check.
func (c *claims) claim(folder, node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.conflict(folder, node); err != nil {
		return err
	}
	if c.folders == nil {
		c.folders = map[string]string{}
	}
	c.folders[node] = folder
	return nil
}

// of returns the node names of a membership.
func (c *claims) of(folder string) (nodes []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for node, owner := range c.folders {
		if owner == folder {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// release releases a node name of a membership.
func (c *claims) release(folder, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.folders, func(n, owner string) bool { return owner == folder && n == node })
}

// keep releases all node names of a membership except one; empty: all.
func (c *claims) keep(folder, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.folders, func(n, owner string) bool { return owner == folder && n != node })
}
