package world

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// TunnelsOf returns nil if status shows tunnels of an edge to exactly the given number of gateways.
func (m *Member) TunnelsOf(ctx context.Context, node string, gateways int) error {
	status, err := m.EdgeStatus(ctx, node)
	if err != nil {
		return err
	}
	connected := 0
	for _, g := range status.Gateways {
		if g.Tunnels > 0 {
			connected++
		}
	}
	if connected != gateways {
		return fmt.Errorf(
			"%s has tunnels to %d gateways (%v), want %s", node, connected, status.Gateways, strconv.Itoa(gateways),
		)
	}
	return nil
}

// Condition returns a condition that is nil once a condition of the Tunnel has a status.
func (m *Member) Condition(kind string, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		tunnel, err := m.Tunnel(ctx)
		if err != nil {
			return err
		}
		for _, c := range tunnel.Status.Conditions {
			if c.Type == kind && string(c.Status) == want {
				return nil
			}
		}
		return fmt.Errorf("%s of %s is not %s: %+v", kind, m, want, tunnel.Status.Conditions)
	}
}

// HasError returns a condition that is nil once an edge's last error in status contains some texts.
func (m *Member) HasError(node string, texts ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		edge, err := m.EdgeStatus(ctx, node)
		if err == nil && !containsAll(edge.LastError, texts...) {
			err = fmt.Errorf("the last error is %q", edge.LastError)
		}
		return err
	}
}

// HasNoError returns a condition that is nil once status has the edge, without a text in its last error.
func (m *Member) HasNoError(node, text string) func(context.Context) error {
	return func(ctx context.Context) error {
		edge, err := m.EdgeStatus(ctx, node)
		if err == nil && strings.Contains(edge.LastError, text) {
			err = fmt.Errorf("the last error is still %q", edge.LastError)
		}
		return err
	}
}

// Gated returns a condition that is nil once a Cluster's TunnelReady has a status, and the message of Cluster API's
// Available contains a text. The status of Available also depends on Cluster API's own connection, which stand-ins do
// not support.
func (m *Member) Gated(status metav1.ConditionStatus, text string) func(context.Context) error {
	return func(ctx context.Context) error {
		cluster, err := m.Get(ctx)
		if err != nil {
			return err
		}
		ours := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterConditionTunnelReady)
		if ours == nil || ours.Status != status {
			return fmt.Errorf("the Cluster's TunnelReady is %+v, want %s", ours, status)
		}
		available := meta.FindStatusCondition(cluster.Status.Conditions, clusterv1.ClusterAvailableCondition)
		if available == nil || !containsAll(available.Message, text) {
			return fmt.Errorf("the Cluster's Available is %+v, want it to say %q", available, text)
		}
		return nil
	}
}

// SeenFrom returns nil if a request arrives from a site.
func (m *Member) SeenFrom(ctx context.Context, site *netns.Site) error {
	who, err := m.Path(0, false).Get(ctx, "/whoami")
	if err == nil && !strings.HasSuffix(who, " "+site.Address.String()) {
		err = fmt.Errorf("carried by %s", who)
	}
	return err
}

// AnsweredBy returns a condition that is nil once an apiserver answers several requests in a row.
func (m *Member) AnsweredBy(want *StandIn) func(context.Context) error {
	return func(ctx context.Context) error {
		for range 5 {
			who, err := m.Path(0, false).Get(ctx, "/whoami")
			if err != nil {
				return err
			}
			if name, _, _ := strings.Cut(who, " "); name != want.Name {
				return fmt.Errorf("%s answers, not %s", name, want.Name)
			}
		}
		return nil
	}
}

// containsAll reports whether a text contains all parts.
func containsAll(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
