package check

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
)

const (
	// defaultInstallation is the namespace in deploy/kubernetes.
	defaultInstallation = "fairlead-system"
	// defaultWatch is long enough to detect anything that cuts a stream at once, and short enough for a person.
	defaultWatch = 3 * time.Second
	// maxLine bounds a text of a result. The errors that it quotes are shorter.
	maxLine  = 1600
	isPaused = "the Cluster, its Tunnel or its RemoteNetwork is paused"
)

// visit is one check of one Cluster, with the findings that later hops use.
type visit struct {
	*Checker
	key     client.ObjectKey
	network Network

	cluster     *clusterv1.Cluster
	tunnel      *v1alpha1.Tunnel
	secret      *corev1.Secret
	config      *rest.Config // of a kubeconfig that can be used
	host, port  string       // that its clients dial
	proxied     bool         // host and port are a proxy's
	dials       string       // host:port of the two, as the kubeconfig has them
	addresses   []netip.Addr // of host
	open        int          // how many of these accepted a connection
	broken      map[ID]bool
	observed    *collect.Fleet        // by the xds-servers; nil: they were not queried
	listeners   map[string]*anypb.Any // of gateways, for clients by SNI
	notObserved string                // why nothing could be observed
	probes      *apiServerProbes      // results of the edges' probes; nil: they were not asked
	cutOff      bool                  // no gateway has a tunnel, observed or on record
	unreached   bool                  // all edges have just observed that the apiserver does not answer
	controller  *collect.Leader
	networks    networks // of the Cluster
	halted      bool     // the RemoteNetwork of the Tunnel is paused
}

// finding is the result of a check.
type finding struct {
	status              Status
	detail, cause, cure string
}

func ok(format string, args ...any) finding {
	return finding{status: OK, detail: fmt.Sprintf(format, args...)}
}

func skipped(detail string) finding { return finding{status: Skipped, detail: detail} }

func unknown(detail, cure string) finding {
	return finding{status: Unknown, detail: detail, cure: cure}
}

func broken(detail, cause, cure string) finding {
	return finding{Broken, detail, cause, cure}
}

func warning(detail, cause, cure string) finding {
	return finding{Warning, detail, cause, cure}
}

func (v *visit) defaults() {
	v.broken = map[ID]bool{}
	v.network = v.Network
	if v.network == nil {
		v.network = machine{}
	}
}

func (v *visit) now() time.Time {
	if v.Now != nil {
		return v.Now()
	}
	return time.Now()
}

func (v *visit) installation() string {
	if v.Installation != "" {
		return v.Installation
	}
	return defaultInstallation
}

// visit checks one hop.
func (v *visit) visit(ctx context.Context, hop Hop) Result {
	limit := hop.limit
	if hop.ID == HopWatch {
		limit += v.watchTime()
	}
	return Measure(ctx, hop.ID, hop.Title, limit, func(ctx context.Context) Outcome {
		f := hop.look(ctx, v)
		v.broken[hop.ID] = f.status == Broken
		return Outcome{f.status, f.detail, f.cause, f.cure}
	})
}

// line returns a text as one line, bounded.
func line(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxLine {
		s = strings.ToValidUTF8(s[:maxLine], "") + "…"
	}
	return s
}

// text returns an error of another program for people, without known secrets.
func text(err error) string { return explain.Text(err) }

// tunnelled reports whether the path leads through gateways.
func (v *visit) tunnelled() bool {
	if v.tunnel == nil {
		return false
	}
	if !v.tunnel.OfCluster() {
		return true
	}
	return v.tunnel.Spec.Kubeconfig.Mode.Tunnelled() &&
		!v.reasonIs(v.tunnel, v1alpha1.ConditionAccepted, v1alpha1.ReasonTunnelsOff)
}

func (v *visit) reasonIs(tunnel *v1alpha1.Tunnel, condition, reason string) bool {
	c := apimeta.FindStatusCondition(tunnel.Status.Conditions, condition)
	return c != nil && c.Reason == reason
}

// leads returns the state of the leader election. It is read once.
func (v *visit) leads(ctx context.Context) collect.Leader {
	if v.controller == nil {
		l := collect.ReadLeader(ctx, v.Objects, v.installation(), v.now())
		v.controller = &l
	}
	return *v.controller
}

// controllerDown returns a sentence about the controller; empty: one leads, or that is unknown.
func (v *visit) controllerDown(ctx context.Context) string {
	l := v.leads(ctx)
	switch {
	case !l.Known || l.Alive:
		return ""
	case l.Renewed.IsZero():
		return "no controller leads: the Lease " + collect.LeaseName + " in namespace " + v.installation() + " has no holder"
	}
	return fmt.Sprintf(
		"no controller leads since %s: the Lease %s in namespace %s was last renewed then", utc(l.Renewed), collect.LeaseName,
		v.installation(),
	)
}

func (v *visit) startController() string {
	return "restart the controller: kubectl -n " + v.installation() + " rollout restart deployment/controller; if it " +
		"does not start, see its log"
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// decide finds the hop that decides.
func (r *Report) decide() {
	r.Status, r.First = OK, ""
	for i := range r.Hops {
		h := &r.Hops[i]
		switch {
		case h.Status == Broken && r.Status != Broken:
			r.Status, r.First = Broken, h.ID
		case h.Status == Warning && r.Status == OK:
			r.Status, r.First = Warning, h.ID
		}
	}
	if r.Status != Broken {
		return
	}
	// The lack of tunnels is found first but is only a symptom: the fault of the edge is the reason.
	if r.First == HopTunnels {
		for _, id := range []ID{HopEdge, HopHandshake} {
			for i := range r.Hops {
				if r.Hops[i].ID == id && r.Hops[i].Status == Broken {
					r.First = id
					return
				}
			}
		}
	}
}

// machine is the network of this machine.
type machine struct{}

// Lookup implements Network.
func (machine) Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// DialContext implements Network.
func (machine) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, address)
}
