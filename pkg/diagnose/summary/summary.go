// Package summary derives the overview of a fleet from Clusters, Tunnels and RemoteNetworks: a row for each Cluster
// that has or requests a tunnel or has networks, with its faults, the worst rows first, and below it a row for each
// of its networks and for its apiservers. Live tunnels from xds-servers can be added. It is pure: it does no I/O,
// and takes its clock as a parameter.
package summary

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// Health sums up a Cluster, or states the severity of one warning.
type Health string

// The values of Health, in the order of display.
const (
	Broken  Health = "broken"  // clients do not reach the apiserver, or soon will not
	Unknown Health = "unknown" // the state cannot be determined at the moment
	Warning Health = "warning" // clients reach it, but a person must act
	Waiting Health = "waiting" // it is new, and something is still missing
	OK      Health = "ok"
)

// ranks sorts Health.
var ranks = map[Health]int{Broken: 0, Unknown: 1, Warning: 2, Waiting: 3, OK: 4}

// routed is the number of Tunnels up to which rows have Routes, of which each has one for each gateway.
const routed = 100

// Input is the input of Build. The objects are not changed, and slices of rows point into them.
type Input struct {
	Clusters []clusterv1.Cluster
	Tunnels  []v1alpha1.Tunnel // of Clusters, networks and apiservers
	Networks []v1alpha1.RemoteNetwork
	// Live is what xds-servers report; nil: they were not queried.
	Live *Live
	// Kubeconfigs has the ends of the client certificates in kubeconfig Secrets that were read.
	Kubeconfigs map[types.NamespacedName]time.Time
}

// Live is what xds-servers report of open tunnels.
type Live struct {
	Tunnels  map[string][]collect.Tunnel // by Tunnel.spec.id
	Gateways []collect.Gateway
	Ways     map[model.EdgeRef][]observed.Way // of edges that prefer the nearest gateways
	Silent   []string                         // the xds-servers that gave no answer, with the reason
}

// View is a fleet.
type View struct {
	Summary Summary `json:"summary"`
	Rows    []Row   `json:"rows"` // the worst first, then by namespace and name
	// PublicAddress is set by callers that may read its state. It is nil if edges can resolve the address.
	PublicAddress *Problem `json:"publicAddress,omitempty"`
}

// Problem is something wrong with the whole installation.
type Problem struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Summary counts rows by their health, and their content.
type Summary struct {
	Clusters       int      `json:"clusters"`
	OK             int      `json:"ok"`
	Warning        int      `json:"warning"`
	Broken         int      `json:"broken"`
	Unknown        int      `json:"unknown"`
	Waiting        int      `json:"waiting"`
	NotOptedIn     int      `json:"notOptedIn"` // Clusters without a row
	Networks       int      `json:"networks"`
	NetworksOK     int      `json:"networksOK"`
	Edges          int      `json:"edges"` // that are let in, with those of networks
	EdgesConnected int      `json:"edgesConnected"`
	Tunnels        int      `json:"tunnels"`
	Silent         []string `json:"silentXDSServers,omitempty"`
}

// Modes of rows below the row of a Cluster.
const (
	ModeNetwork = "network" // one of its RemoteNetworks
	ModeEgress  = "egress"  // its apiservers, which reach its networks
)

// Row is one Cluster, one of its networks, or its apiservers.
type Row struct {
	Namespace string   `json:"namespace"`
	Cluster   string   `json:"cluster"`
	Network   string   `json:"network,omitempty"` // of a network: its name
	CIDRs     []string `json:"cidrs,omitempty"`   // of a network
	Health    Health   `json:"health"`
	ID        string   `json:"id,omitempty"`       // Tunnel.spec.id
	Mode      string   `json:"mode,omitempty"`     // of the kubeconfig, in use or requested; or one of the above
	Hostname  string   `json:"hostname,omitempty"` // empty: nothing is served
	Names     []string `json:"names,omitempty"`    // of a network: those of its targets
	Server    string   `json:"server,omitempty"`   // of the kubeconfig
	ProxyURL  string   `json:"proxyURL,omitempty"`
	Links
	Created    time.Time          `json:"created,omitzero"`
	LastChange time.Time          `json:"lastChange,omitzero"` // of the status of a condition
	Expiries   []Expiry           `json:"expiries,omitempty"`  // the earliest first
	Paused     bool               `json:"paused,omitempty"`
	Deleting   bool               `json:"deleting,omitempty"`
	Warnings   []Notice           `json:"warnings,omitempty"` // the worst first
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	Networks   []Row              `json:"networks,omitempty"` // of a Cluster, by name
	Egress     *Row               `json:"egress,omitempty"`   // of a Cluster with networks
}

// Links are the edges of a Tunnel and their tunnels. Of a Tunnel for apiservers they are the Envoys beside these.
type Links struct {
	Edges     []observed.Edge    `json:"edges,omitempty"`
	Connected int                `json:"edgesConnected"`
	LetIn     int                `json:"edgesLetIn"` // neither revoked nor expired
	Tunnels   int                `json:"tunnels"`
	Gateways  []observed.Gateway `json:"gateways,omitempty"`
	RTT       observed.Millis    `json:"rttMillis,omitempty"` // the median of its tunnels
	Routes    []Route            `json:"routes,omitempty"`    // of gateways that answered
}

// Route is where one gateway leads clients of a Tunnel.
type Route struct {
	Gateway string `json:"gateway"`
	Zone    string `json:"zone,omitempty"` // of the gateway; empty: not known
	// To are the gateways to which it forwards the clients, the nearest first; none: it has tunnels itself.
	To []observed.Way `json:"to,omitempty"`
}

// Below returns the rows below the row of a Cluster.
func (r *Row) Below() []*Row {
	all := make([]*Row, 0, len(r.Networks)+1)
	for i := range r.Networks {
		all = append(all, &r.Networks[i])
	}
	if r.Egress != nil {
		all = append(all, r.Egress)
	}
	return all
}

// Expiry is the end of a certificate.
type Expiry struct {
	Of       string    `json:"of"` // "edge <node>", "apiserver", "kubeconfig" or "copy <namespace>/<name>"
	NotAfter time.Time `json:"notAfter"`
}

// Notice is a fault or an information.
type Notice struct {
	Weight Health    `json:"weight"`
	Reason string    `json:"reason"` // a reason of a condition, or a word of this package
	Text   string    `json:"text"`   // what is wrong, and what to do
	Since  time.Time `json:"since,omitzero"`
}

// Build returns the overview of a fleet at a time.
func Build(in Input, now time.Time) View {
	clusters := make(map[types.NamespacedName]*clusterv1.Cluster, len(in.Clusters))
	for i := range in.Clusters {
		c := &in.Clusters[i]
		clusters[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
	}
	if len(in.Tunnels) > routed && in.Live != nil {
		live := *in.Live
		live.Gateways = nil
		in.Live = &live
	}
	networks := networksOf(in)
	view := View{Rows: make([]Row, 0, len(in.Tunnels))}
	with := make(map[types.NamespacedName]bool, len(in.Tunnels))
	for i := range in.Tunnels {
		t := &in.Tunnels[i]
		if !t.OfCluster() {
			continue
		}
		key := types.NamespacedName{Namespace: t.Namespace, Name: t.Name}
		with[key] = true
		view.Rows = append(view.Rows, build(clusters[key], t, in, now))
	}
	for i := range in.Clusters {
		c := &in.Clusters[i]
		key := types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
		switch {
		case with[key]:
		case c.Labels[v1alpha1.TunnelLabel] == v1alpha1.TunnelEnabled:
			view.Rows = append(view.Rows, withoutTunnel(c, now))
		case networks.has(key):
			view.Rows = append(view.Rows, withoutOptIn(c))
		default:
			view.Summary.NotOptedIn++
		}
	}
	view.Rows = append(view.Rows, networks.withoutCluster(func(key types.NamespacedName) bool {
		return clusters[key] != nil || with[key]
	})...)
	for i := range view.Rows {
		view.Rows[i].addNetworks(networks, in, now)
	}
	slices.SortFunc(view.Rows, func(a, b Row) int {
		return cmp.Or(
			ranks[a.Health]-ranks[b.Health], cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Cluster, b.Cluster),
		)
	})
	view.Summary.count(view.Rows)
	if in.Live != nil {
		view.Summary.Silent = in.Live.Silent
	}
	return view
}

func (s *Summary) count(rows []Row) {
	s.Clusters = len(rows)
	of := map[Health]*int{Broken: &s.Broken, Unknown: &s.Unknown, Warning: &s.Warning, Waiting: &s.Waiting, OK: &s.OK}
	for i := range rows {
		r := &rows[i]
		*of[r.Health]++
		s.add(r.Links)
		for j := range r.Networks {
			s.Networks++
			if r.Networks[j].Health == OK {
				s.NetworksOK++
			}
			s.add(r.Networks[j].Links)
		}
	}
}

func (s *Summary) add(l Links) {
	s.Edges += l.LetIn
	s.EdgesConnected += l.Connected
	s.Tunnels += l.Tunnels
}
