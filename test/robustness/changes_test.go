package robustness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// deletedForMove is the annotation of clusterctl on the objects that it has moved.
const deletedForMove = "clusterctl.cluster.x-k8s.io/delete-for-move"

// move takes a Cluster out of the management cluster, as clusterctl move does at its source, and returns what brings it
// back, as clusterctl move does at its target. clusterctl writes and reads the objects; it has no command that only
// deletes them. The edges keep running, and their tunnels come back with the Tunnel, whose id has not changed.
func (in *installation) move(ctx context.Context, m *member) (end func() error, err error) {
	in.serving.RLock()
	defer in.serving.RUnlock()
	in.moving.Lock()
	defer in.moving.Unlock()
	dir, err := in.writeMoved(ctx, in.Lab, m.name)
	if err != nil {
		return nil, err
	}
	if err := in.patch(ctx, m, map[string]any{"spec": map[string]any{"paused": true}}); err != nil {
		return nil, err
	}
	if err := in.again(ctx, func(ctx context.Context) error { return in.deleteMoved(ctx, in.Lab, dir) }); err != nil {
		return nil, err
	}
	in.expect(m, m.answer, false)
	return func() error {
		in.serving.RLock()
		defer in.serving.RUnlock()
		in.moving.Lock()
		defer in.moving.Unlock()
		if err := in.clusterctl(ctx, in.Lab, "--from-directory="+dir); err != nil {
			return err
		}
		in.expect(m, m.answer, true)
		return in.again(ctx, m.cluster.SetProvisioned) // as its providers do: clusterctl moves no status
	}, nil
}

// writeMoved has clusterctl write the namespace of an installation to a new folder, and removes what is not of a
// Cluster: clusterctl has no way to choose one. It pauses all of them meanwhile, and refuses while one is paused. It is
// not interrupted when an attempt ends, because it would leave them paused. If it does not succeed, Clusters that it
// has paused are set going again, as its user has to do.
func (in *installation) writeMoved(
	ctx context.Context, l *lab.Lab, cluster string,
) (dir string, err error) {
	if dir, err = os.MkdirTemp(in.Dir, "moved-"+cluster+"-"); err != nil {
		return "", fmt.Errorf("moving %s: %w", cluster, err)
	}
	var before map[string]bool
	if err := in.again(ctx, func(ctx context.Context) (err error) {
		before, err = paused(ctx, l)
		return err
	}); err != nil {
		return "", err
	}
	if err := proc.Wait(ctx, patience, func(ctx context.Context) error {
		return in.clusterctl(ctx, l, "--to-directory="+dir)
	}); err != nil {
		return "", errors.Join(err, in.again(ctx, func(ctx context.Context) error { return unpause(ctx, l, before) }))
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		objects, err := kube.ReadObjects(file)
		if err != nil {
			return "", err
		}
		others := func(o *unstructured.Unstructured) bool { return !ofCluster(o.GetName(), cluster) }
		if slices.ContainsFunc(objects, others) {
			if err := os.Remove(file); err != nil {
				return "", err
			}
		}
	}
	return dir, nil
}

// paused returns the names of the Clusters of an installation that are paused.
func paused(ctx context.Context, l *lab.Lab) (map[string]bool, error) {
	var all clusterv1.ClusterList
	if err := l.Management.Client.List(ctx, &all, client.InNamespace(world.Namespace)); err != nil {
		return nil, fmt.Errorf("listing Clusters: %w", err)
	}
	names := map[string]bool{}
	for i := range all.Items {
		names[all.Items[i].Name] = ptr.Deref(all.Items[i].Spec.Paused, false)
	}
	return names, nil
}

// unpause ends the pause of the Clusters that were not paused before.
func unpause(ctx context.Context, l *lab.Lab, before map[string]bool) error {
	now, err := paused(ctx, l)
	if err != nil {
		return err
	}
	for name, is := range now {
		if !is || before[name] {
			continue
		}
		cluster := &clusterv1.Cluster{}
		cluster.Namespace, cluster.Name = world.Namespace, name
		change := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":null}}`))
		if err := l.Management.Client.Patch(ctx, cluster, change); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("unpausing %s: %w", name, err)
		}
	}
	return nil
}

// ofCluster reports whether an object belongs to a Cluster, by its name.
func ofCluster(object, cluster string) bool {
	rest, found := strings.CutPrefix(object, cluster)
	return found && (rest == "" || strings.HasPrefix(rest, "-"))
}

func (in *installation) clusterctl(ctx context.Context, l *lab.Lab, flag string) error {
	out, err := l.Clusterctl(ctx, "move", flag, "--namespace="+world.Namespace)
	if err != nil {
		return fmt.Errorf("running clusterctl move %s: %w: %s", flag, err, out)
	}
	return nil
}

// deleteMoved deletes the objects of an installation that clusterctl has written to a folder, and returns an error
// until all of them are gone. Like clusterctl it marks each object, and removes its finalizers, but it leaves those of
// the Tunnel to the controller, which would else have no occasion to end the tunnel.
func (in *installation) deleteMoved(ctx context.Context, l *lab.Lab, dir string) error {
	objects, err := kube.ReadObjects(dir)
	if err != nil {
		return err
	}
	// The Cluster is the owner of the others, so it is last.
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Compare(last(a), last(b))
	})
	var errs []error
	for _, o := range objects {
		if o.GetKind() != "Namespace" {
			errs = append(errs, deleteForMove(ctx, l, o))
		}
	}
	return errors.Join(errs...)
}

func last(o *unstructured.Unstructured) int {
	if o.GetKind() == "Cluster" {
		return 1
	}
	return 0
}

func deleteForMove(ctx context.Context, l *lab.Lab, written *unstructured.Unstructured) error {
	o, c := &unstructured.Unstructured{}, l.Management.Client
	o.SetGroupVersionKind(written.GroupVersionKind())
	if err := c.Get(ctx, client.ObjectKeyFromObject(written), o); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := o.DeepCopy()
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[deletedForMove] = ""
	o.SetAnnotations(annotations)
	if o.GetKind() != "Tunnel" {
		o.SetFinalizers(nil)
	}
	if err := c.Patch(ctx, o, client.MergeFrom(before)); err != nil {
		return client.IgnoreNotFound(err)
	}
	if err := c.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return client.IgnoreNotFound(err)
	}
	return fmt.Errorf("%s %s is still there", o.GetKind(), o.GetName())
}

// furtherName returns a name of a member that is not below the tunnel domain.
func (m *member) furtherName() string { return m.name + ".shops.example.test" }

// rename adds a name to a Tunnel, and waits until clients reach the workload cluster by it. In the end it waits until
// none does.
func (in *installation) rename(ctx context.Context, m *member) (end func() error, err error) {
	path := m.path
	path.Hostname = m.furtherName()
	err = errors.Join(in.patchTunnel(ctx, m, map[string]any{"extraNames": []any{m.furtherName()}}),
		in.again(ctx, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
			defer cancel()
			return m.exchange(ctx, path, &Entry{}, nil)
		}))
	if err != nil {
		return nil, err
	}
	further := func(do func(traffic.Path) error) error {
		var errs []error
		for _, p := range m.paths() {
			p.Hostname = m.furtherName()
			errs = append(errs, do(p))
		}
		return errors.Join(errs...)
	}
	_ = further(func(p traffic.Path) error {
		in.request(m, "name", p, traffic.RequestTimeout, nil) // the check decides who may answer
		return nil
	})
	return func() error {
		return errors.Join(in.patchTunnel(ctx, m, map[string]any{}), in.again(ctx, func(ctx context.Context) error {
			err := further(func(p traffic.Path) error {
				ctx, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
				defer cancel()
				if m.exchange(ctx, p, &Entry{}, nil) == nil {
					return fmt.Errorf("%s still answers", p)
				}
				return nil
			})
			return errors.Join(err, ctx.Err()) // what is not asked any more has not answered
		}))
	}, nil
}

// limit limits a Tunnel to more than its clients need.
func (in *installation) limit(ctx context.Context, m *member) (end func() error, err error) {
	limits := map[string]any{"connections": int64(100), "pendingConnections": int64(50), "bandwidth": "50Mi"}
	return func() error { return in.patchTunnel(ctx, m, map[string]any{}) },
		in.patchTunnel(ctx, m, map[string]any{"limits": limits})
}

// patchTunnel replaces what a user has set in a Tunnel, except for the mode.
func (in *installation) patchTunnel(ctx context.Context, m *member, spec map[string]any) error {
	return in.again(ctx, func(ctx context.Context) error { return m.cluster.PatchTunnel(ctx, spec) })
}
