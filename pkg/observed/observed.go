// Package observed is the one model of an edge. Its input is a report that an xds-server holds, or a record in the
// status of a Tunnel; its output is plain values, and the facts derived from them. Status, check, the status page, the
// commands and the metrics of xds-servers take these facts from here, so each is derived once. It does not know where
// an observation was collected (pkg/diagnose/collect) nor what it means for a Cluster (pkg/diagnose/check and summary).
//
// Two other types hold an edge, because they are wire formats: reportv1.EdgeState between agents, xds-servers and
// controller, and v1alpha1.EdgeStatus in the management cluster. Each is mapped to this model in one place: APIServerOf
// and Recorded.
package observed

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// State is the state of an edge by its record.
type State string

// The states of edges on record.
const (
	Connected State = "connected" // it has a tunnel, or, beside an apiserver, reports to an xds-server
	Away      State = "away"      // it has none, or does not report
	Expired   State = "expired"   // it has none, and its certificate has ended
	Revoked   State = "revoked"
	Unknown   State = "unknown" // it has none on record, and the record may be incomplete
)

// Edge is an edge as the xds-servers or the controller observe it. Fields that the source does not have are empty.
type Edge struct {
	Node      string     `json:"node"` // node name; if the recorded node id is invalid, that node id
	ID        string     `json:"-"`    // Tunnel.spec.id
	APIServer *APIServer `json:"apiServer,omitempty"`
	LastError string     `json:"lastError,omitempty"` // the problem that the edge itself reports
	Connected bool       `json:"-"`                   // it reports to an xds-server; of a record: as in State

	// Only from xds-servers:

	Server    string        `json:"-"` // of its current or last report
	Addresses []netip.Addr  `json:"-"` // of its machine, without loopback and link-local ones
	Since     time.Time     `json:"-"` // when Connected changed last
	Age       time.Duration `json:"-"` // of its report: an edge reports what changes; 0: not known

	// Only from records:

	State     State     `json:"state"`
	Host      string    `json:"host,omitempty"`
	Version   string    `json:"version,omitempty"`
	Form      string    `json:"form,omitempty"`
	Enrolled  time.Time `json:"enrolled"`
	NotAfter  time.Time `json:"notAfter"` // of its certificate
	LastSeen  time.Time `json:"lastSeen,omitzero"`
	RevokedAt time.Time `json:"-"` // when the controller saw the revocation; zero: it has not
	// CutAt is when all gateways had reported no tunnel after the revocation; zero: they have not.
	CutAt    time.Time `json:"-"`
	Gateways []Gateway `json:"gateways,omitempty"` // with tunnels of the edge
	// Ways are the addresses of the gateways, the nearest first, if the edge opens connections to the nearest of several.
	Ways []Way `json:"ways,omitempty"`
}

// Way is a host that an edge or a gateway may use.
type Way struct {
	To   string `json:"to"`             // an address, or the name of a gateway
	Zone string `json:"zone,omitempty"` // of a gateway; empty: not known
	RTT  Millis `json:"rttMillis,omitempty"`
	Rank int    `json:"rank"` // those with the lowest rank that can serve are used
}

// String describes a way, such as "gateway-0 (zone a, 0.3 ms)".
func (w Way) String() string {
	var about []string
	if w.Zone != "" {
		about = append(about, "zone "+w.Zone)
	}
	if w.RTT > 0 {
		about = append(about, fmt.Sprintf("%.1f ms", float64(w.RTT)))
	}
	if len(about) == 0 {
		return w.To
	}
	return w.To + " (" + strings.Join(about, ", ") + ")"
}

// WaysOf converts what an agent reports, in its order.
func WaysOf(all []*reportv1.Way) (ways []Way) {
	for _, w := range all {
		ways = append(ways, Way{
			To: w.GetTo(), Zone: w.GetZone(), RTT: Millis(float64(w.GetRoundTripMicros()) / 1000), Rank: int(w.GetRank()),
		})
	}
	return ways
}

// Gateway counts the tunnels of one edge, or of several, to one gateway.
type Gateway struct {
	Name    string `json:"name"`
	Tunnels int    `json:"tunnels"`
	// WorkersWithout is on how many workers of the gateway's Envoy an edge has no tunnel, while it has some on others.
	WorkersWithout int    `json:"workersWithout,omitempty"`
	RTT            Millis `json:"rttMillis,omitempty"` // the median of these tunnels
}

// Millis is a time in milliseconds; 0: not known.
type Millis float64

// Duration converts m to a time.Duration.
func (m Millis) Duration() time.Duration {
	return time.Duration(float64(m) * float64(time.Millisecond))
}

// DisconnectedSince returns since when an agent has not reported; zero: it does, or that is not known.
func DisconnectedSince(connected bool, since time.Time) time.Time {
	if connected {
		return time.Time{}
	}
	return since
}

// Revoked returns whether the edge is on record as revoked.
func (e *Edge) Revoked() bool { return e.State == Revoked }

// DisconnectedSince returns since when the edge's agent has not reported; zero: it does, or that is not known.
func (e *Edge) DisconnectedSince() time.Time { return DisconnectedSince(e.Connected, e.Since) }

// HasTunnel returns whether the edge is on record with a tunnel, or beside an apiserver as connected, and is not
// revoked.
func (e *Edge) HasTunnel() bool { return e.State == Connected }

// LetIn returns whether the edge may have tunnels: it is neither revoked nor away with a certificate that has ended.
func (e *Edge) LetIn() bool { return e.State != Revoked && e.State != Expired }

// HoldsCertificate returns whether the certificate on record is valid and the edge is not revoked.
func (e *Edge) HoldsCertificate(now time.Time) bool { return !e.Revoked() && now.Before(e.NotAfter) }

// Cut returns whether it is on record that no gateway has a tunnel of the revoked edge.
func (e *Edge) Cut() bool { return !e.CutAt.IsZero() }

// Tunnels returns how many tunnels the edge has.
func (e *Edge) Tunnels() (n int) {
	for _, g := range e.Gateways {
		n += g.Tunnels
	}
	return n
}

// WorkersWithout returns the workers without a tunnel of the edge, such as "2 workers of gateway-0"; empty: none.
func (e *Edge) WorkersWithout() string {
	var all []string
	for _, g := range e.Gateways {
		if g.WorkersWithout > 0 {
			all = append(all, fmt.Sprintf("%d workers of %s", g.WorkersWithout, g.Name))
		}
	}
	return strings.Join(all, ", ")
}

// Health returns the health of the apiserver by the edge's report.
func (e *Edge) Health() Health { return e.APIServer.Health() }

// TunnelsByGateway returns the tunnels of each gateway, such as "gateway-0:2,gateway-1:2"; empty: there are none.
func TunnelsByGateway(gateways []Gateway) string {
	var all []string
	for _, g := range gateways {
		all = append(all, fmt.Sprintf("%s:%d", g.Name, g.Tunnels))
	}
	return strings.Join(all, ",")
}

// APIServer is the apiserver of a workload cluster as an edge observes it.
type APIServer struct {
	Address string `json:"address,omitempty"`
	Healthy bool   `json:"healthy"`
	// Reason is why it is not healthy, and Message the same for people. An edge of a later version may report a reason
	// that this version does not know.
	Reason           model.APIServerReason `json:"reason,omitempty"`
	Message          string                `json:"message,omitempty"`
	Version          string                `json:"version,omitempty"`
	CertificateNames []string              `json:"certificateNames,omitempty"`
	CertificateEnd   time.Time             `json:"certificateEnd,omitzero"` // zero: not known
}

// Health is the health of an apiserver as an edge observes it.
type Health string

// The values of Health, which are also values of a label of metrics.
const (
	Healthy       Health = "healthy"
	Unhealthy     Health = "unhealthy"
	HealthUnknown Health = "unknown" // the edge has not reported it
)

// Health returns whether the apiserver is healthy. For nil it returns HealthUnknown.
func (a *APIServer) Health() Health {
	switch {
	case a == nil:
		return HealthUnknown
	case a.Healthy:
		return Healthy
	}
	return Unhealthy
}

// APIServerOf maps the apiserver in a report; nil for nil.
func APIServerOf(a *reportv1.APIServer) *APIServer {
	if a == nil {
		return nil
	}
	one := &APIServer{
		Address: a.GetAddress(), Healthy: a.GetHealthy(), Reason: model.APIServerReason(a.GetReason()),
		Message: a.GetMessage(), Version: a.GetVersion(), CertificateNames: a.GetCertificateNames(),
	}
	if end := a.GetCertificateNotAfter(); end.IsValid() {
		one.CertificateEnd = end.AsTime()
	}
	return one
}

// AddressesOf maps the addresses of a machine in a report. It leaves out texts that are none.
func AddressesOf(report *reportv1.EdgeReport) (all []netip.Addr) {
	for _, text := range report.GetAddresses() {
		if address, err := netip.ParseAddr(text); err == nil {
			all = append(all, address.Unmap())
		}
	}
	return all
}

// Sooner returns the earlier of two ends of certificates. Zero means that an end is not known.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
