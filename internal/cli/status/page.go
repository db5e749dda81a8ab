package status

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead/fairlead/internal/cli/edge"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
	"github.com/fairlead/fairlead/pkg/observed"
)

// liveReader queries the xds-servers for a short time.
type liveReader struct {
	flags    *statusFlags
	m        *management.Client
	progress output.Progress

	mu      sync.Mutex
	servers *collect.Servers
	last    *summary.Live
	queried time.Time
	problem string // why there is no live data
}

// ask returns live data of the tunnels with some ids, or of all tunnels without ids. It returns nil if no server
// answers in time. With --watch an answer is reused for a while.
func (l *liveReader) ask(ctx context.Context, ids ...string) *summary.Live {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flags.offline {
		return nil
	}
	if !l.queried.IsZero() && time.Since(l.queried) < liveInterval/2 {
		return l.last
	}
	l.progress.Update("querying the xds-servers …")
	defer l.progress.Done()
	ctx, cancel := context.WithTimeout(ctx, liveTime)
	defer cancel()
	fleet, err := l.fleet(ctx, ids)
	l.queried, l.last, l.problem = time.Now(), nil, ""
	if err != nil {
		l.problem = output.OneLine(err.Error())
		return nil
	}
	l.last = summary.LiveOf(fleet)
	if len(l.last.Silent) > 0 {
		l.problem = "of some tunnels: " + strings.Join(l.last.Silent, "; ")
	}
	return l.last
}

func (l *liveReader) fleet(ctx context.Context, ids []string) (collect.Fleet, error) {
	if l.servers == nil {
		servers, err := l.flags.Connect(ctx, l.m)
		if err != nil {
			return collect.Fleet{}, err
		}
		l.servers = servers
	}
	fleet, err := l.servers.Fleet(ctx, ids...)
	if err != nil { // there may be other Pods by now
		_ = l.servers.Close()
		l.servers = nil
	}
	return fleet, err
}

func (l *liveReader) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.servers != nil {
		_ = l.servers.Close()
	}
}

// clientCertificateEnd returns when the client certificate of a kubeconfig expires.
func clientCertificateEnd(data []byte) (time.Time, bool) {
	config, err := clientcmd.Load(data)
	if err != nil || config.Contexts[config.CurrentContext] == nil {
		return time.Time{}, false
	}
	user := config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo]
	if user == nil {
		return time.Time{}, false
	}
	block, _ := pem.Decode(user.ClientCertificateData)
	if block == nil {
		return time.Time{}, false
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, false
	}
	return leaf.NotAfter, true
}

// clusterPage shows everything about one Cluster.
func clusterPage(r *summary.Row, problem, hidden string, now time.Time) output.View {
	return output.View{Data: r, Same: stateOf(r), Page: func(p *output.Page) {
		p.Field("Cluster", output.Plain(r.Namespace+"/"+r.Cluster))
		p.Field("State", output.Styled(healthStyles[r.Health], string(r.Health)))
		p.Field("Mode", output.Plain(output.OrDash(r.Mode)))
		p.Field("Hostname", output.Plain(output.OrDash(r.Hostname)))
		if len(r.Names) > 1 {
			p.Field("Extra names", output.Plain(strings.Join(r.Names[1:], ", ")))
		}
		if r.ProxyURL != "" {
			p.Field("Kubeconfig", output.Plain(r.Server+" by "+r.ProxyURL))
		} else {
			p.Field("Kubeconfig", output.Plain(output.OrDash(r.Server)))
		}
		p.Field("Edges", output.Plain(fmt.Sprintf("%d of %d connected", r.Connected, r.LetIn)))
		p.Field("Tunnels", output.Plain(output.OrDash(observed.TunnelsByGateway(r.Gateways))))
		if problem != "" {
			p.Field("Round trip", output.Styled(output.StyleFaint, "not known: "+problem))
		} else {
			p.Field("Round trip", output.Plain(roundTrip(r.RTT)))
		}
		p.Field("Last change", output.Plain(ageAgo(r.LastChange, now)))
		if hidden != "" {
			p.Field("Networks", output.Styled(output.StyleFaint, "not known: "+hidden))
		}
		warnings(p, r, now)
		if r.Egress == nil || len(r.Conditions) > 0 { // without a Tunnel of its own it has no edges
			edges(p, r, now)
		}
		networks(p, r, now)
		expiries(p, r, now)
		conditions(p, r, now)
		if r.Health != summary.OK {
			p.Line()
			p.Line(output.Plain(fmt.Sprintf("`fairlead check -n %s %s` finds the hop that is broken.", r.Namespace, r.Cluster)))
		}
	}}
}

// stateOf returns the parts of a row that change neither by time alone nor with each measurement.
func stateOf(r *summary.Row) any {
	same := []any{
		r.Health,
		r.Mode,
		r.Names,
		r.Server,
		r.ProxyURL,
		r.Connected,
		r.LetIn,
		output.OrDash(observed.TunnelsByGateway(r.Gateways)),
		r.LastChange,
	}
	for _, w := range r.Warnings {
		same = append(same, w.Reason, w.Text)
	}
	for i := range r.Edges {
		same = append(same, r.Edges[i].Node, r.Edges[i].State, r.Edges[i].APIServer)
	}
	for _, below := range r.Below() {
		same = append(same, below.Network, below.CIDRs, stateOf(below))
	}
	return same
}

func ageAgo(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return output.Age(t, now) + " ago"
}

func warnings(p *output.Page, r *summary.Row, now time.Time) {
	if len(r.Warnings) == 0 {
		return
	}
	p.Heading("Warnings")
	for _, w := range r.Warnings {
		since := ""
		if !w.Since.IsZero() {
			since = " (for " + output.Age(w.Since, now) + ")"
		}
		p.Line(
			output.Plain("  "), output.Styled(healthStyles[w.Weight], string(w.Weight)),
			output.Plain(" "+w.Reason+since+": "+w.Text),
		)
	}
}

func edges(p *output.Page, r *summary.Row, now time.Time) {
	p.Heading("Edges")
	if len(r.Edges) == 0 {
		p.Line(
			output.Plain(
				fmt.Sprintf(
					"  none has enrolled: `fairlead join -n %s %s` prints the command that gives it one",
					r.Namespace,
					r.Cluster,
				),
			),
		)
		return
	}
	p.Table(edgeTable(r, now))
	routes(p, r)
}

// routes shows which gateways the clients of each gateway use, and which gateways the edges use.
func routes(p *output.Page, r *summary.Row) {
	if len(r.Routes) > 0 {
		p.Heading("Gateways")
		t := &output.Table{Columns: output.Columns("  GATEWAY", "ZONE", "CLIENTS")}
		for _, of := range r.Routes {
			clients := "use its own tunnels"
			if len(of.To) > 0 {
				clients = "are forwarded to " + preferred(of.To)
			}
			t.Add(of.Gateway, of, output.Plain("  "+of.Gateway), output.Plain(output.OrDash(of.Zone)), output.Plain(clients))
		}
		p.Table(t)
	}
	ways(p, r)
}

// ways shows which gateways edges use for connections that they open.
func ways(p *output.Page, r *summary.Row) {
	for i := range r.Edges {
		if e := &r.Edges[i]; len(e.Ways) > 0 {
			p.Line(output.Plain("  " + e.Node + " opens connections to " + preferred(e.Ways)))
		}
	}
}

// preferred lists hosts in the order of their use: those with equal ranks are used in turn.
func preferred(ways []observed.Way) string {
	var text strings.Builder
	for i, w := range ways {
		switch {
		case i > 0 && w.Rank > ways[i-1].Rank:
			text.WriteString(", then ")
		case i > 0:
			text.WriteString(" and ")
		}
		text.WriteString(w.String())
	}
	return text.String()
}

func edgeTable(r *summary.Row, now time.Time) *output.Table {
	t := &output.Table{
		Columns: output.Columns(
			"  NODE", "HOST", "STATE", "TUNNELS", "RTT", "SEEN", "CERTIFICATE", "APISERVER", "FORM", "VERSION",
		),
	}
	for i := range r.Edges {
		e := &r.Edges[i]
		t.Add(
			e.Node,
			e,
			output.Plain("  "+e.Node),
			output.Plain(output.OrDash(e.Host)),
			output.Styled(edge.StateStyles[e.State], string(e.State)),
			output.Plain(output.OrDash(observed.TunnelsByGateway(e.Gateways))),
			output.Plain(edgeRoundTrip(e)),
			output.Plain(
				ageAgo(e.LastSeen, now),
			),
			output.Plain(output.Left(e.NotAfter, now)),
			edge.APIServer(e),
			output.Plain(output.OrDash(e.Form)),
			output.Plain(output.OrDash(e.Version)),
		)
	}
	return t
}

// networks shows the networks of a Cluster, and the Envoys beside its apiservers.
func networks(p *output.Page, r *summary.Row, now time.Time) {
	if r.Egress == nil {
		return
	}
	p.Heading("Networks")
	t := &output.Table{Columns: output.Columns("  NETWORK", "STATE", "CIDRS", "EDGES", "TUNNELS", "RTT", "WARNING")}
	for i := range r.Networks {
		n := &r.Networks[i]
		warning := "-"
		if len(n.Warnings) > 0 {
			warning = n.Warnings[0].Text
		}
		t.Add(
			n.Network, n, output.Plain("  "+n.Network), output.Styled(healthStyles[n.Health], string(n.Health)),
			output.Plain(output.OrDash(strings.Join(n.CIDRs, ","))), output.Plain(fmt.Sprintf("%d/%d", n.Connected, n.LetIn)),
			output.Plain(output.OrDash(observed.TunnelsByGateway(n.Gateways))), output.Plain(roundTrip(n.RTT)),
			output.Plain(warning),
		)
	}
	p.Table(t)
	for i := range r.Networks {
		if n := &r.Networks[i]; len(n.Edges) > 0 {
			p.Heading("Edges of network " + n.Network)
			p.Table(edgeTable(n, now))
			routes(p, n)
		}
	}
	p.Heading("Apiservers, egress")
	if len(r.Egress.Edges) == 0 {
		p.Line(output.Plain(fmt.Sprintf(
			"  none has enrolled: `fairlead network egress -n %s %s` prints what they need", r.Namespace, r.Cluster,
		)))
		return
	}
	p.Table(egressTable(r.Egress, now))
	ways(p, r.Egress)
}

func egressTable(r *summary.Row, now time.Time) *output.Table {
	t := &output.Table{Columns: output.Columns("  NODE", "HOST", "STATE", "SEEN", "CERTIFICATE", "FORM", "VERSION")}
	for i := range r.Edges {
		e := &r.Edges[i]
		t.Add(
			e.Node, e, output.Plain("  "+e.Node), output.Plain(output.OrDash(e.Host)),
			output.Styled(edge.StateStyles[e.State], string(e.State)), output.Plain(ageAgo(e.LastSeen, now)),
			output.Plain(output.Left(e.NotAfter, now)), output.Plain(output.OrDash(e.Form)),
			output.Plain(output.OrDash(e.Version)),
		)
	}
	return t
}

func edgeRoundTrip(e *observed.Edge) string {
	var all []string
	for _, g := range e.Gateways {
		if g.RTT > 0 {
			all = append(all, roundTrip(g.RTT))
		}
	}
	return output.OrDash(strings.Join(all, ","))
}

func expiries(p *output.Page, r *summary.Row, now time.Time) {
	if len(r.Expiries) == 0 {
		return
	}
	p.Heading("Certificates")
	t := &output.Table{Columns: output.Columns("  OF", "ENDS IN", "AT")}
	for _, e := range r.Expiries {
		t.Add(
			e.Of, e, output.Plain("  "+e.Of), output.Plain(output.Left(e.NotAfter, now)),
			output.Plain(e.NotAfter.UTC().Format(time.RFC3339)),
		)
	}
	p.Table(t)
}

func conditions(p *output.Page, r *summary.Row, now time.Time) {
	if len(r.Conditions) == 0 {
		return
	}
	p.Heading("Conditions")
	t := &output.Table{Columns: output.Columns("  TYPE", "STATUS", "REASON", "SINCE", "MESSAGE")}
	for _, kind := range sortedConditions(r) {
		c := meta.FindStatusCondition(r.Conditions, kind)
		m := output.StyleGood
		switch c.Status {
		case metav1.ConditionFalse:
			m = output.StyleBad
		case metav1.ConditionUnknown:
			m = output.StyleFaint
		}
		t.Add(
			kind, c, output.Plain("  "+kind), output.Styled(m, string(c.Status)), output.Plain(c.Reason),
			output.Plain(output.Age(c.LastTransitionTime.Time, now)), output.Plain(c.Message),
		)
	}
	p.Table(t)
}
