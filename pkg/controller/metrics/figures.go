// Package metrics counts what the controller writes, and collects the state of Tunnels and of the CA at each scrape.
// Its input is a client and the cache; its output is a client that counts and a Prometheus collector. It writes no
// object. Only the leading replica publishes metrics of the whole fleet, so that sums over replicas are right.
package metrics

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/model"
)

// readTimeout bounds one read of the cache, which blocks only until the cache has synced.
const readTimeout = 2 * time.Second

// Collector collects the metrics of a controller. Only the leading replica publishes metrics of the fleet, so that sums
// over replicas are right.
type Collector struct {
	metrics.Set
	config  config.Config
	cached  client.Reader
	elected <-chan struct{}
	now     func() time.Time

	kubeconfigs, signatures, statusWrites *prometheus.CounterVec
	statusDelay, revocation               *prometheus.HistogramVec

	mu      sync.Mutex
	waiting func() map[string]int // waiting writes of status by urgency; nil: none
	age     func() time.Duration  // of the oldest report; nil: there are none
}

// New returns the collector of a manager. It collects state only while the manager leads.
func New(mgr ctrl.Manager, config config.Config) *Collector {
	f := &Collector{config: config, cached: mgr.GetCache(), elected: mgr.Elected(), now: config.Clock()}
	f.kubeconfigs, f.signatures = f.Counter(
		"fairlead_controller_kubeconfig_writes_total",
	), f.Counter("fairlead_controller_signatures_total")
	f.statusWrites = f.Counter("fairlead_controller_status_writes_total")
	f.statusDelay = f.Histogram("fairlead_controller_status_delay_seconds")
	f.revocation = f.Histogram("fairlead_controller_revocation_seconds")
	f.revocation.WithLabelValues()
	for _, result := range []string{"ok", "error"} {
		f.kubeconfigs.WithLabelValues(result)
	}
	for _, role := range []model.Role{model.RoleEdge, model.RoleEgress, model.RoleGateway, model.RoleControl} {
		for _, result := range []string{"signed", "denied", "error"} {
			f.signatures.WithLabelValues(string(role), result)
		}
	}
	f.Observe(
		f.collectAll, "fairlead_controller_leader", "fairlead_controller_leaf_lifetime_seconds",
		"fairlead_controller_tunnels", "fairlead_controller_tunnel_conditions", "fairlead_controller_edges",
		"fairlead_controller_leaf_expiry_timestamp_seconds", "fairlead_controller_status_queue",
		"fairlead_controller_ca_phase", "fairlead_controller_ca_expiry_timestamp_seconds", "fairlead_controller_ca_problem",
		"fairlead_controller_tunnel_ready", "fairlead_controller_tunnel_edges",
		"fairlead_controller_tunnel_leaf_expiry_timestamp_seconds", "fairlead_controller_networks",
		"fairlead_controller_network_conditions", "fairlead_controller_report_age_seconds",
	)
	return f
}

// Follow adds the waiting writes of status, by urgency, and the age of the oldest report; nil: there are no reports.
func (f *Collector) Follow(waiting func() map[string]int, age func() time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting, f.age = waiting, age
	for urgency := range waiting() {
		f.statusDelay.WithLabelValues(urgency)
	}
}

// StatusWritten records a write of live state and how long the change waited.
func (f *Collector) StatusWritten(urgency string, after time.Duration) {
	f.statusDelay.WithLabelValues(urgency).Observe(after.Seconds())
}

// EdgeCut records how long after its revocation all connections of an edge were closed.
func (f *Collector) EdgeCut(after time.Duration) {
	f.revocation.WithLabelValues().Observe(after.Seconds())
}

func (f *Collector) collectAll(emit metrics.Emit) {
	emit("fairlead_controller_leaf_lifetime_seconds", f.config.LeafLifetime.Seconds())
	select {
	case <-f.elected:
		emit("fairlead_controller_leader", 1)
	default:
		emit("fairlead_controller_leader", 0)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	f.collectTunnels(ctx, emit)
	f.collectNetworks(ctx, emit)
	f.collectCA(ctx, emit)
	f.mu.Lock()
	waiting, age := f.waiting, f.age
	f.mu.Unlock()
	if age != nil {
		emit("fairlead_controller_report_age_seconds", age().Seconds())
	}
	if waiting == nil {
		return
	}
	for urgency, n := range waiting() {
		emit("fairlead_controller_status_queue", float64(n), urgency)
	}
}

// The kinds of Tunnels, by what they are for.
const kindCluster, kindNetwork, kindEgress = "cluster", "network", "egress"

var kinds = []string{kindCluster, kindNetwork, kindEgress}

func kindOf(t *v1alpha1.Tunnel) string {
	switch {
	case t.Spec.Network != "":
		return kindNetwork
	case t.Spec.EgressOf != "":
		return kindEgress
	}
	return kindCluster
}

// condition is the key of a count of Tunnels or of RemoteNetworks, which have no kind.
type condition struct {
	of, kind, reason string
	status           metav1.ConditionStatus
}

// counts are the numbers of Tunnels and of their edges.
type counts struct {
	tunnels    map[string]int // by kind
	conditions map[condition]int
	edges      map[[2]string]int // by kind and state
}

// addConditions adds the conditions of a Tunnel. One that waits for its Cluster is not served, so only whether it is
// accepted counts. One that never had an edge has lost no tunnel, and alerts about lost tunnels must be able to leave
// it out, so its TunnelReady has the reason of its condition Enrolled.
func (c counts) addConditions(t *v1alpha1.Tunnel, kind string, now time.Time) {
	prepared := t.Prepared(now)
	for _, one := range t.Status.Conditions {
		if prepared && one.Type != v1alpha1.ConditionAccepted {
			continue
		}
		reason := one.Reason
		if kind == kindCluster && one.Type == v1alpha1.ConditionTunnelReady && one.Status == metav1.ConditionFalse &&
			len(t.Status.Edges) == 0 {
			reason = v1alpha1.ReasonNoEdge
		}
		c.conditions[condition{kind, one.Type, reason, one.Status}]++
	}
}

func (c counts) emit(emit metrics.Emit) {
	for _, kind := range kinds {
		emit("fairlead_controller_tunnels", float64(c.tunnels[kind]), kind)
		for _, state := range []string{edgeConnected, edgeAway, edgeExpired, edgeRevoked} {
			emit("fairlead_controller_edges", float64(c.edges[[2]string{kind, state}]), kind, state)
		}
	}
	for one, n := range c.conditions {
		emit("fairlead_controller_tunnel_conditions", float64(n), one.of, one.kind, string(one.status), one.reason)
	}
}

func (f *Collector) collectTunnels(ctx context.Context, emit metrics.Emit) {
	var tunnels v1alpha1.TunnelList
	// There may be 10,000, and nothing here changes them.
	if err := f.cached.List(ctx, &tunnels, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	now := f.now()
	all := counts{tunnels: map[string]int{}, conditions: map[condition]int{}, edges: map[[2]string]int{}}
	var first time.Time
	for i := range tunnels.Items {
		t := &tunnels.Items[i]
		kind := kindOf(t)
		all.tunnels[kind]++
		all.addConditions(t, kind, now)
		connected, next := 0, time.Time{}
		for j := range t.Status.Edges {
			e := &t.Status.Edges[j]
			state := stateOf(e, now)
			all.edges[[2]string{kind, state}]++
			if state != edgeConnected {
				continue
			}
			connected++
			if end := e.CertificateNotAfter.Time; next.IsZero() || end.Before(next) {
				next = end
			}
		}
		if first.IsZero() || !next.IsZero() && next.Before(first) {
			first = next
		}
		if f.config.PerCluster {
			emit(
				"fairlead_controller_tunnel_ready",
				metrics.Bool(apimeta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionReady)), t.Namespace, t.Name,
			)
			emit("fairlead_controller_tunnel_edges", float64(connected), t.Namespace, t.Name)
			if !next.IsZero() {
				emit("fairlead_controller_tunnel_leaf_expiry_timestamp_seconds", float64(next.Unix()), t.Namespace, t.Name)
			}
		}
	}
	all.emit(emit)
	if !first.IsZero() {
		emit("fairlead_controller_leaf_expiry_timestamp_seconds", float64(first.Unix()))
	}
}

// collectNetworks collects the conditions of RemoteNetworks.
func (f *Collector) collectNetworks(ctx context.Context, emit metrics.Emit) {
	var networks v1alpha1.RemoteNetworkList
	if err := f.cached.List(ctx, &networks, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	conditions := map[condition]int{}
	for i := range networks.Items {
		for _, c := range networks.Items[i].Status.Conditions {
			conditions[condition{kind: c.Type, reason: c.Reason, status: c.Status}]++
		}
	}
	emit("fairlead_controller_networks", float64(len(networks.Items)))
	for one, n := range conditions {
		emit("fairlead_controller_network_conditions", float64(n), one.kind, string(one.status), one.reason)
	}
}

const edgeConnected, edgeAway, edgeExpired, edgeRevoked = "connected", "away", "expired", "revoked"

// stateOf returns the state of an edge. An edge with tunnels is connected, whatever its certificate, and so is a node
// beside an apiserver that reports.
func stateOf(e *v1alpha1.EdgeStatus, now time.Time) string {
	switch {
	case e.RevokedAt != nil:
		return edgeRevoked
	case e.Connected || slices.ContainsFunc(e.Gateways, func(g v1alpha1.EdgeGatewayStatus) bool { return g.Tunnels > 0 }):
		return edgeConnected
	case e.CertificateNotAfter.Time.Before(now):
		return edgeExpired
	}
	return edgeAway
}

// collectCA collects the public facts about the CA.
func (f *Collector) collectCA(ctx context.Context, emit metrics.Emit) {
	if f.config.NoTunnels {
		return
	}
	var published corev1.ConfigMap
	var rotation v1alpha1.CARotation
	key := client.ObjectKey{Namespace: f.config.Namespace, Name: v1alpha1.InstallationConfigMapName}
	if f.cached.Get(ctx, key, &published) != nil ||
		json.Unmarshal([]byte(published.Data[v1alpha1.CARotationKey]), &rotation) != nil {
		return // there is no installation yet
	}
	for _, phase := range []v1alpha1.CAPhase{
		v1alpha1.CAPhaseSteady, v1alpha1.CAPhaseIntroduce, v1alpha1.CAPhaseMove, v1alpha1.CAPhaseRetire,
	} {
		emit("fairlead_controller_ca_phase", metrics.Bool(phase == rotation.Phase), string(phase))
	}
	emit("fairlead_controller_ca_problem", metrics.Bool(rotation.Problem != ""))
	ends := map[string]time.Time{}
	for _, ca := range rotation.CAs {
		which := "other"
		if slices.Contains(ca.Signs, "edge") {
			which = "signing"
		}
		if end, ok := ends[which]; !ok || ca.NotAfter.Time.Before(end) {
			ends[which] = ca.NotAfter.Time
		}
	}
	for which, end := range ends {
		emit("fairlead_controller_ca_expiry_timestamp_seconds", float64(end.Unix()), which)
	}
}
