package robustness

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// nothing is the end of an operation that has none.
func nothing() error { return nil }

// operation begins what a user does, and returns what ends it. It waits until the effect should be complete.
func (in *installation) operation(ctx context.Context, s Step) (end func() error, err error) {
	switch s.Action {
	case RotateCA:
		return nothing, in.again(ctx, func(ctx context.Context) error { return in.command(ctx, "ca", "rotate") })
	case ScaleDown:
		return func() error { return in.scale(func() error { return in.AddGateway(ctx) }) },
			in.scale(func() error { return in.RemoveGateway(ctx, patience) })
	}
	name, number, _ := strings.Cut(s.Target, "/")
	m := in.members[name]
	if m == nil {
		return nil, fmt.Errorf("the installation has no %s", name)
	}
	return in.change(ctx, m, s.Action, number)
}

// scale changes the number of gateways, which cannot be tried again.
func (in *installation) scale(change func() error) error {
	in.serving.RLock()
	defer in.serving.RUnlock()
	in.networks.Lock()
	defer in.networks.Unlock()
	return change()
}

// change is operation for a Cluster.
func (in *installation) change(ctx context.Context, m *member, action Action, number string) (func() error, error) {
	switch action {
	case Create:
		in.serving.RLock()
		defer in.serving.RUnlock()
		return func() error { return in.delete(ctx, m) }, in.create(ctx, m)
	case Delete:
		return func() error {
			in.serving.RLock()
			defer in.serving.RUnlock()
			return in.create(ctx, m)
		}, in.delete(ctx, m)
	case Pause:
		set := func(paused bool) error {
			return in.patch(ctx, m, map[string]any{"spec": map[string]any{"paused": paused}})
		}
		return func() error { return set(false) }, set(true)
	case Connect:
		set := func(mode v1alpha1.KubeconfigMode) error {
			if err := in.again(ctx, func(ctx context.Context) error {
				change := map[string]any{"kubeconfig": map[string]any{"mode": string(mode)}}
				if err := m.cluster.PatchTunnel(ctx, change); err != nil {
					return err
				}
				return m.hasMode(ctx, mode)
			}); err != nil {
				return err
			}
			return in.again(ctx, func(ctx context.Context) error { return m.kubeconfig(ctx, mode) })
		}
		return func() error { return set(v1alpha1.KubeconfigModeSNI) }, set(v1alpha1.KubeconfigModeConnect)
	case OptOut:
		return in.optOut(ctx, m)
	case Move:
		return in.move(ctx, m)
	case Transfer:
		return in.transfer(ctx, m)
	case Names:
		return in.rename(ctx, m)
	case Limits:
		return in.limit(ctx, m)
	case Revoke:
		i, err := strconv.Atoi(number)
		if err != nil {
			return nil, err
		}
		return nothing, in.revoke(ctx, m, i)
	}
	return nil, fmt.Errorf("unknown operation %s", action)
}

// hasMode returns nil if the kubeconfig of a member is of a mode.
func (m *member) hasMode(ctx context.Context, mode v1alpha1.KubeconfigMode) error {
	kubeconfig, err := m.cluster.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	connects := bytes.Contains(kubeconfig, []byte("proxy-url: "))
	if connects != (mode == v1alpha1.KubeconfigModeConnect) {
		return fmt.Errorf("the kubeconfig of %s is not of mode %s", m.name, mode)
	}
	return nil
}

func (in *installation) patch(ctx context.Context, m *member, change map[string]any) error {
	return in.again(ctx, func(ctx context.Context) error { return m.cluster.Patch(ctx, change) })
}

// command runs a command of ours.
func (in *installation) command(ctx context.Context, args ...string) error {
	out, err := in.runCommand(ctx, args...)
	if err != nil {
		return fmt.Errorf("running fairlead %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (in *installation) optOut(ctx context.Context, m *member) (func() error, error) {
	label := func(value string) error {
		return in.patch(ctx, m, map[string]any{"metadata": map[string]any{
			"labels": map[string]any{v1alpha1.TunnelLabel: value},
		}})
	}
	in.moving.RLock()
	defer in.moving.RUnlock()
	if err := label(v1alpha1.TunnelDisabled); err != nil {
		return nil, err
	}
	in.expect(m, m.answer, false)
	if err := in.again(ctx, func(ctx context.Context) error { return in.tunnelGone(ctx, m.name) }); err != nil {
		return nil, err
	}
	return func() error {
		if err := label(v1alpha1.TunnelEnabled); err != nil {
			return err
		}
		in.expect(m, m.answer, true)
		return in.replaceEdges(ctx, m)
	}, nil
}

// replaceEdges starts new edges for a Tunnel that was made again, as its user has to. The old ones still run.
func (in *installation) replaceEdges(ctx context.Context, m *member) error {
	in.retire(m)
	for i := range max(1, Inventory[m.name]) {
		if err := in.startEdge(ctx, m, i); err != nil {
			return err
		}
	}
	return nil
}

// retire makes the edges of a member those of the past. They still run, until it happens again.
func (in *installation) retire(m *member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.gone {
		in.stopEdge(p)
	}
	m.gone = nil
	for i, p := range m.edges {
		m.gone = append(m.gone, p)
		delete(m.edges, i)
		in.history.Add(Entry{Kind: KindRetired, Cluster: m.name, Edge: p.site.Address.String()})
	}
}

// delete deletes the Cluster of a member, and returns when it is gone. Its edges and its apiserver still run.
func (in *installation) delete(ctx context.Context, m *member) error {
	in.serving.RLock()
	defer in.serving.RUnlock()
	in.moving.RLock()
	err := in.again(ctx, func(ctx context.Context) error { return in.remove(ctx, m.name) })
	in.moving.RUnlock()
	if err != nil {
		return err
	}
	in.expect(m, m.answer, false)
	in.retire(m)
	return nil
}

// remove deletes a Cluster and what its providers have created, and returns an error until all of it is gone.
func (in *installation) remove(ctx context.Context, name string) error {
	key := client.ObjectKey{Namespace: world.Namespace, Name: name}
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = key.Namespace, key.Name
	objects := []client.Object{cluster}
	for group, kind := range map[string]string{
		"infrastructure.cluster.x-k8s.io": "LabCluster", "controlplane.cluster.x-k8s.io": "LabControlPlane",
	} {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion(group + "/v1beta2")
		object.SetKind(kind)
		object.SetNamespace(key.Namespace)
		object.SetName(key.Name)
		objects = append(objects, object)
	}
	for _, object := range objects {
		if err := in.Management.Client.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s: %w", name, err)
		}
		err := in.Management.Client.Get(ctx, key, object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		if err == nil {
			return fmt.Errorf("%T of %s is still there", object, name)
		}
	}
	return in.tunnelGone(ctx, name)
}

// tunnelGone returns nil if a Cluster has no Tunnel. Until then its bootstrap Secret may be that of the old one.
func (in *installation) tunnelGone(ctx context.Context, name string) error {
	key := client.ObjectKey{Namespace: world.Namespace, Name: name}
	err := in.Management.Client.Get(ctx, key, &v1alpha1.Tunnel{})
	if err == nil {
		err = fmt.Errorf("the Tunnel of %s is still there", name)
	}
	return client.IgnoreNotFound(err)
}

// revoke revokes an edge, and starts another one in a new place. The revoked one still runs.
func (in *installation) revoke(ctx context.Context, m *member, i int) error {
	m.mu.Lock()
	out := m.edges[i]
	m.mu.Unlock()
	in.stopOld(m.name, i)
	m.mu.Lock()
	m.old[i] = out
	m.mu.Unlock()
	stolen, err := outsider.Steal(world.Domain, out.StateDir)
	if err != nil {
		return err
	}
	in.history.Add(Entry{Kind: KindRevoking, Cluster: m.name, Name: stolen.Subject.NodeID()})
	if !in.ignoreRevocations {
		if err := in.revokeNode(ctx, m, stolen.Subject.Node); err != nil {
			return err
		}
	}
	in.history.Add(Entry{
		Kind: KindRevoked, Cluster: m.name, Edge: out.site.Address.String(), Name: stolen.Subject.NodeID(),
	})
	in.mu.Lock()
	in.thieves = append(in.thieves, stolen)
	in.revoked[out.site.Address.String()] = true
	in.mu.Unlock()
	return in.startEdge(ctx, m, i)
}

// stopOld stops a revoked edge.
func (in *installation) stopOld(cluster string, i int) {
	m := in.members[cluster]
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.old[i] != nil {
		in.stopEdge(m.old[i])
		m.old[i] = nil
	}
}

func (in *installation) revokeNode(ctx context.Context, m *member, node string) error {
	return in.again(ctx, func(ctx context.Context) error {
		return in.command(ctx, "edge", "revoke", node, "--namespace", m.cluster.Namespace, "--cluster", m.name,
			"--timeout=15s", in.Inspection())
	})
}
