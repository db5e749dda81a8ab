package cli

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

	"github.com/fairlead/fairlead/pkg/fleetview"
	"github.com/fairlead/fairlead/pkg/inspect"
)

// liveLook asks the xds-servers, for a short time.
type liveLook struct {
	flags    *statusFlags
	m        *management
	progress progress

	mu      sync.Mutex
	servers *inspect.Servers
	last    *fleetview.Live
	asked   time.Time
	problem string // why there is nothing of them
}

// ask returns what they know of tunnels with some ids, or of all; nil if they give no answer in time. With --watch an answer is good
// for a while.
func (l *liveLook) ask(ctx context.Context, ids ...string) *fleetview.Live {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flags.offline {
		return nil
	}
	if !l.asked.IsZero() && time.Since(l.asked) < liveInterval/2 {
		return l.last
	}
	l.progress.say("asking the xds-servers …")
	defer l.progress.done()
	ctx, cancel := context.WithTimeout(ctx, liveTime)
	defer cancel()
	fleet, err := l.fleet(ctx, ids)
	l.asked, l.last, l.problem = time.Now(), nil, ""
	if err != nil {
		l.problem = oneLine(err.Error())
		return nil
	}
	l.last = fleetview.FromInspect(fleet)
	if len(l.last.Silent) > 0 {
		l.problem = "of some tunnels: " + strings.Join(l.last.Silent, "; ")
	}
	return l.last
}

func (l *liveLook) fleet(ctx context.Context, ids []string) (inspect.Fleet, error) {
	if l.servers == nil {
		servers, err := l.flags.connect(ctx, l.m)
		if err != nil {
			return inspect.Fleet{}, err
		}
		l.servers = servers
	}
	fleet, err := l.servers.Fleet(ctx, ids...)
	if err != nil { // the Pods may be others by now
		_ = l.servers.Close()
		l.servers = nil
	}
	return fleet, err
}

func (l *liveLook) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.servers != nil {
		_ = l.servers.Close()
	}
}

func oneLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

// clientCertificateEnd is when the client certificate of a kubeconfig ends.
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

// clusterPage is all that is known about one Cluster.
func clusterPage(r *fleetview.Row, problem string, now time.Time) view {
	return view{Data: r, Same: stateOf(r), Page: func(p *page) {
		p.field("Cluster", plain(r.Namespace+"/"+r.Cluster))
		p.field("State", in(moods[r.Health], string(r.Health)))
		p.field("Mode", plain(orDash(r.Mode)))
		p.field("Hostname", plain(orDash(r.Hostname)))
		if len(r.Names) > 1 {
			p.field("Extra names", plain(strings.Join(r.Names[1:], ", ")))
		}
		if r.ProxyURL != "" {
			p.field("Kubeconfig", plain(r.Server+" by "+r.ProxyURL))
		} else {
			p.field("Kubeconfig", plain(orDash(r.Server)))
		}
		p.field("Edges", plain(fmt.Sprintf("%d of %d connected", r.Connected, r.LetIn)))
		p.field("Tunnels", plain(perGateway(r.Gateways)))
		if problem != "" {
			p.field("Round trip", in(moodFaint, "not known: "+problem))
		} else {
			p.field("Round trip", plain(roundTrip(r.RTT)))
		}
		p.field("Last change", plain(ageAgo(r.LastChange, now)))
		p.warnings(r, now)
		p.edges(r, now)
		p.expiries(r, now)
		p.conditions(r, now)
		if r.Health != fleetview.OK {
			p.line()
			p.line(plain(fmt.Sprintf("`fairlead check -n %s %s` finds the hop that is broken.", r.Namespace, r.Cluster)))
		}
	}}
}

// stateOf is what of a row does not change by time alone, nor with each measurement.
func stateOf(r *fleetview.Row) any {
	same := []any{r.Health, r.Mode, r.Names, r.Server, r.ProxyURL, r.Connected, r.LetIn, perGateway(r.Gateways), r.LastChange}
	for _, w := range r.Warnings {
		same = append(same, w.Reason, w.Text)
	}
	for i := range r.Edges {
		same = append(same, r.Edges[i].Node, r.Edges[i].State, r.Edges[i].APIServer)
	}
	return same
}

func ageAgo(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return age(t, now) + " ago"
}

func (p *page) warnings(r *fleetview.Row, now time.Time) {
	if len(r.Warnings) == 0 {
		return
	}
	p.heading("Warnings")
	for _, w := range r.Warnings {
		since := ""
		if !w.Since.IsZero() {
			since = " (for " + age(w.Since, now) + ")"
		}
		p.line(plain("  "), in(moods[w.Weight], string(w.Weight)), plain(" "+w.Reason+since+": "+w.Text))
	}
}

func (p *page) edges(r *fleetview.Row, now time.Time) {
	p.heading("Edges")
	t := &table{columns: columns("  NODE", "HOST", "STATE", "TUNNELS", "RTT", "SEEN", "CERTIFICATE", "APISERVER", "FORM", "VERSION")}
	for i := range r.Edges {
		e := &r.Edges[i]
		t.add(e.Node, e, plain("  "+e.Node), plain(orDash(e.Host)), in(edgeMoods[e.State], e.State), plain(perGateway(e.Gateways)), plain(edgeRoundTrip(e)),
			plain(ageAgo(e.LastSeen, now)), plain(left(e.NotAfter, now)), plain(orDash(e.APIServer)), plain(orDash(e.Form)), plain(orDash(e.Version)))
	}
	if len(t.rows) == 0 {
		p.line(plain(fmt.Sprintf("  none has enrolled: `fairlead join -n %s %s` prints the command that gives it one", r.Namespace, r.Cluster)))
		return
	}
	p.table(t)
}

func edgeRoundTrip(e *fleetview.Edge) string {
	var all []string
	for _, g := range e.Gateways {
		if g.RTT > 0 {
			all = append(all, roundTrip(g.RTT))
		}
	}
	return orDash(strings.Join(all, ","))
}

func (p *page) expiries(r *fleetview.Row, now time.Time) {
	if len(r.Expiries) == 0 {
		return
	}
	p.heading("Certificates")
	t := &table{columns: columns("  OF", "ENDS IN", "AT")}
	for _, e := range r.Expiries {
		t.add(e.Of, e, plain("  "+e.Of), plain(left(e.NotAfter, now)), plain(e.NotAfter.UTC().Format(time.RFC3339)))
	}
	p.table(t)
}

func (p *page) conditions(r *fleetview.Row, now time.Time) {
	if len(r.Conditions) == 0 {
		return
	}
	p.heading("Conditions")
	t := &table{columns: columns("  TYPE", "STATUS", "REASON", "SINCE", "MESSAGE")}
	for _, kind := range sortedConditions(r) {
		c := meta.FindStatusCondition(r.Conditions, kind)
		m := moodGood
		switch c.Status {
		case metav1.ConditionFalse:
			m = moodBad
		case metav1.ConditionUnknown:
			m = moodFaint
		}
		t.add(kind, c, plain("  "+kind), in(m, string(c.Status)), plain(c.Reason), plain(age(c.LastTransitionTime.Time, now)), plain(c.Message))
	}
	p.table(t)
}
