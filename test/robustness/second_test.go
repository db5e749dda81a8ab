package robustness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// secondDomain is the tunnel domain of the second installation.
const secondDomain model.TunnelDomain = "tunnels.second.test"

// secondHostname returns the tunnel hostname of a Cluster in the second installation.
func secondHostname(cluster string) string {
	name, err := secondDomain.Hostname(model.Key{Namespace: world.Namespace, Name: cluster})
	if err != nil {
		panic(err) // the input is constant
	}
	return name
}

// secondInstallation is a management cluster with an installation of its own, to which Clusters are moved: a
// controller, an xds-server and a gateway, with another CA, tunnel domain and public address.
type secondInstallation struct {
	*lab.Lab
	started bool
	// to is a kubeconfig for it where the first management cluster is, and from the reverse.
	to, from string
}

// newSecond makes the networks of the second installation. It is started for the first schedule that needs it.
func newSecond(t *testing.T, first *lab.Lab) *secondInstallation {
	t.Helper()
	l, err := first.NewSecond(t.Context(), lab.Options{TunnelDomain: string(secondDomain), Lean: true})
	must(t, err)
	proof.OnInterrupt(l.Close)
	t.Cleanup(func() { l.Close(context.Background()) })
	return &secondInstallation{Lab: l}
}

// startSecond starts the second installation, if that has not been done, with a member for each Cluster that may be
// moved there. It is started before anything is measured.
func (in *installation) startSecond(t *testing.T) {
	t.Helper()
	s := in.second
	if s.started {
		return
	}
	s.started = true
	proof.Start(t, s.Lab, nil)
	_, err := s.StartManager(t.Context(), "capi-second", world.Namespace) // or clusterctl moves no Cluster back
	must(t, err)
	s.to, err = in.SecondKubeconfig(t.Context(), s.Lab)
	must(t, err)
	s.from, err = s.SecondKubeconfig(t.Context(), in.Lab)
	must(t, err)
	for _, name := range targets[Transfer] {
		m := in.members[name]
		there := &member{
			name: name + Second, path: m.path, real: m.real, named: m.named, served: m.served, edges: map[int]*place{},
			old: map[int]*place{}, cluster: s.Cluster(m.cluster.NamespacedName), answer: m.answer,
		}
		there.path.From, there.path.Hostname = s.Network.Management, secondHostname(name)
		there.cluster.APIServer = m.cluster.APIServer
		in.members[there.name] = there
	}
}

// second reports whether a member is a Cluster in the second installation.
func (m *member) second() bool { return inSecond(m.name) }

// key returns the name of the member's Cluster.
func (m *member) key() types.NamespacedName {
	return types.NamespacedName{Namespace: world.Namespace, Name: home(m.name)}
}

// gateways returns the number of gateways of the member's installation.
func (m *member) gateways() int {
	if m.second() {
		return 1
	}
	return Gateways
}

// describe describes a path. Faults of the first installation's gateways are no excuse in the second one.
func (m *member) describe(p traffic.Path) string {
	if m.second() {
		return p.String() + Second
	}
	return p.String()
}

// isUp reports whether the member should have a tunnel.
func (m *member) isUp() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up
}

// lab returns the installation of a member.
func (in *installation) lab(m *member) *lab.Lab {
	if m.second() {
		return in.second.Lab
	}
	return in.Lab
}

// transfer moves a Cluster to the second management cluster as docs/edge.md says, and returns what brings it back in
// the same way. Afterwards its edges leave the second installation.
func (in *installation) transfer(ctx context.Context, m *member) (end func() error, err error) {
	there := in.members[m.name+Second]
	joined, err := in.carry(ctx, m, there)
	if err != nil {
		return nil, err
	}
	return func() error {
		if _, err := in.carry(ctx, there, m); err != nil {
			return err
		}
		return in.again(ctx, func(ctx context.Context) error { return in.leave(ctx, joined) })
	}, nil
}

// carry moves a Cluster between the installations of two members, and waits until it has arrived. It returns the names
// of the tunnels that the edges have joined.
func (in *installation) carry(ctx context.Context, from, to *member) (joined map[*place]string, err error) {
	began := time.Now()
	if joined, err = in.enrolAhead(ctx, from, to); err != nil {
		return nil, fmt.Errorf("enrolling the edges of %s: %w", to.name, err)
	}
	enrolled := time.Since(began)
	former, err := from.cluster.Kubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	if err := in.moveObjects(ctx, from, to); err != nil {
		return nil, err
	}
	moved := time.Since(began)
	if err := in.again(ctx, func(ctx context.Context) error { return arrived(ctx, from, to) }); err != nil {
		return nil, err
	}
	in.history.Add(Entry{Kind: KindArrived, Cluster: to.name})
	in.t.Logf("%s: its edges were enrolled after %s, clusterctl ended after %s, it arrived after %s", to.name, enrolled,
		moved, time.Since(began))
	if err := in.again(ctx, func(ctx context.Context) error { return in.left(ctx, from, to) }); err != nil {
		return nil, err
	}
	return joined, from.useless(ctx, former)
}

// enrolAhead enrols the edges of a member in another installation with fairlead move prepare. No edge runs in a Pod, so
// it prints what to run there.
func (in *installation) enrolAhead(ctx context.Context, from, to *member) (joined map[*place]string, err error) {
	kubeconfig := in.second.to
	if from.second() {
		kubeconfig = in.second.from
	}
	prepare := func(ctx context.Context, flag string) (string, error) {
		out, err := in.lab(from).Exec(ctx, "move", "prepare", "--namespace="+world.Namespace,
			"--to-kubeconfig="+kubeconfig, from.key().Name, flag)
		if err != nil {
			err = fmt.Errorf("running fairlead move prepare %s: %w: %s", flag, err, lab.RedactJoining(out))
		}
		return out, err
	}
	joined = map[*place]string{}
	return joined, in.again(ctx, func(ctx context.Context) error {
		out, err := prepare(ctx, "--wait=false")
		if err != nil {
			return err
		}
		if input, missing := lab.Joining(out)[from.key().Name]; missing {
			for _, p := range in.places(from) {
				if joined[p], err = in.Join(ctx, p.Agent, input); err != nil {
					return err
				}
			}
		}
		_, err = prepare(ctx, "--timeout=10s")
		return err
	})
}

// places returns the present edges of a member, or of the member whose Cluster it is in the second installation.
func (in *installation) places(m *member) []*place {
	m = in.members[home(m.name)]
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.edges))
}

// leave ends what the edges of a member have joined.
func (in *installation) leave(ctx context.Context, joined map[*place]string) error {
	for p, name := range joined {
		if err := in.Leave(ctx, p.Agent, name); err != nil {
			return err
		}
		delete(joined, p)
	}
	return nil
}

// moveObjects moves the objects of a Cluster by clusterctl, which writes and reads them: it could otherwise only move
// all Clusters of a namespace. As in its own move, the Cluster is paused at the source until it is there, and then
// deleted.
func (in *installation) moveObjects(ctx context.Context, from, to *member) error {
	in.serving.RLock()
	defer in.serving.RUnlock()
	in.moving.Lock()
	defer in.moving.Unlock()
	dir, err := in.writeMoved(ctx, in.lab(from), from.key().Name)
	if err != nil {
		return err
	}
	if err := in.again(ctx, func(ctx context.Context) error {
		return from.cluster.Patch(ctx, map[string]any{"spec": map[string]any{"paused": true}})
	}); err != nil {
		return err
	}
	if err := in.clusterctl(ctx, in.lab(to), "--from-directory="+dir); err != nil {
		return err
	}
	in.history.Add(Entry{Kind: KindLeaves, Cluster: from.name})
	if err := in.again(ctx, func(ctx context.Context) error {
		return in.deleteMoved(ctx, in.lab(from), dir)
	}); err != nil {
		return err
	}
	in.expect(from, from.answer, false)
	in.expect(to, from.answer, true)
	in.history.Add(Entry{Kind: KindMoved, Cluster: to.name})
	return in.again(ctx, to.cluster.SetProvisioned) // as its providers do: clusterctl moves no status
}

// arrived returns nil if a Cluster answers in its new place on every path and with its kubeconfig, and in its former
// place on none.
func arrived(ctx context.Context, from, to *member) error {
	for _, m := range []*member{to, from} {
		for _, p := range m.paths() {
			if err := m.asExpected(ctx, p); err != nil {
				return fmt.Errorf("%s: %w", m.describe(p), err)
			}
		}
	}
	return to.kubeconfig(ctx, v1alpha1.KubeconfigModeSNI)
}

// useless returns an error if a kubeconfig works that a Cluster had before it was moved away.
func (m *member) useless(ctx context.Context, former []byte) error {
	ctx, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
	defer cancel()
	if m.named && m.cluster.ReachWith(ctx, former) == nil {
		return fmt.Errorf("the former kubeconfig of %s works", m.name)
	}
	return nil
}

// left returns nil if nothing of a Cluster is left where it was, and if the installation there has not recorded its
// tunnel as ended, for which it would deny its edges.
func (in *installation) left(ctx context.Context, from, to *member) error {
	source := in.lab(from).Management.Client
	var secrets corev1.SecretList
	var tunnels v1alpha1.TunnelList
	var clusters clusterv1.ClusterList
	for _, list := range []client.ObjectList{&secrets, &tunnels, &clusters} {
		if err := source.List(ctx, list, client.InNamespace(world.Namespace)); err != nil {
			return err
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		for _, o := range objects {
			if name := o.(client.Object).GetName(); ofCluster(name, from.key().Name) {
				return fmt.Errorf("%T %s is left where %s was", o, name, from.name)
			}
		}
	}
	tunnel, err := to.cluster.Tunnel(ctx)
	if err != nil {
		return err
	}
	ended := &corev1.ConfigMap{}
	at := client.ObjectKey{Namespace: lab.InstallationNamespace, Name: v1alpha1.EndedTunnelsConfigMapName}
	if err := client.IgnoreNotFound(source.Get(ctx, at, ended)); err != nil {
		return err
	}
	if until, is := ended.Data[tunnel.Spec.ID]; is {
		return fmt.Errorf("the edges of %s are denied where it was until %s", to.name, until)
	}
	return nil
}
