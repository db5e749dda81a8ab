package check

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/observed"
)

// lookAPIServer has the edges look at the apiserver, and looks whether its certificate has the name that the kubeconfig verifies.
func lookAPIServer(ctx context.Context, v *visit) finding {
	if f := v.noWay(); f != nil {
		return *f
	}
	edges, late := v.atAPIServer(ctx)
	f := v.judgeAPIServer(edges)
	if late != "" {
		f.detail += "; " + late
	}
	return f
}

// looks is what edges answer who are asked to look at their apiserver.
type looks struct {
	all []collect.EdgeLook
	err error // why none could be asked
}

// look has the edges look, once for all hops.
func (v *visit) look(ctx context.Context) looks {
	if v.looks == nil {
		v.looks = &looks{}
		v.looks.all, v.looks.err = v.Servers.Look(ctx, v.tunnel.HeldID())
	}
	return *v.looks
}

// of is what one edge answers.
func (l looks) of(node string) collect.EdgeLook {
	if at := slices.IndexFunc(l.all, func(e collect.EdgeLook) bool { return e.Node == node }); at >= 0 {
		return l.all[at]
	}
	if l.err != nil {
		return collect.EdgeLook{Node: node, Problem: text(l.err)}
	}
	return collect.EdgeLook{Node: node, Problem: "no xds-server that answers has it now"}
}

// atAPIServer are the edges that are connected, with what they see of the apiserver now; if none of them looks now, with what they have reported.
// late says so.
func (v *visit) atAPIServer(ctx context.Context) (all []observed.Edge, late string) {
	for _, e := range v.edges() {
		if e.Connected {
			all = append(all, e)
		}
	}
	if v.observed == nil || v.blind != "" {
		return all, "as the controller has noted"
	}
	if len(all) == 0 {
		return nil, ""
	}
	seen := v.look(ctx)
	var fresh []observed.Edge
	var others []string
	reached := false
	for _, e := range all {
		look := seen.of(e.Node)
		if look.APIServer == nil {
			others = append(others, fmt.Sprintf("%s has not looked now (%s): that is as it has reported %s ago", e.Node, look.Problem, e.Age.Round(time.Second)))
			continue
		}
		e.APIServer = look.APIServer
		fresh = append(fresh, e)
		reached = reached || !e.APIServer.CertificateEnd.IsZero()
	}
	v.unreached = len(others) == 0 && !reached && len(v.silent()) == 0
	if len(fresh) > 0 {
		all = fresh
	}
	return all, strings.Join(others, "; ")
}

// judgeAPIServer says what it means what edges see of the apiserver.
func (v *visit) judgeAPIServer(edges []observed.Edge) finding {
	var healthy []string
	var ill, first *observed.Edge
	for _, e := range edges {
		switch health := e.Health(); {
		case health == observed.HealthUnknown:
		case health == observed.Healthy:
			healthy = append(healthy, e.Node)
			if first == nil {
				first = &e
			}
		case ill == nil:
			ill = &e
		}
	}
	switch {
	case first == nil && ill == nil:
		return skipped("no edge is connected that could tell")
	case first == nil:
		return v.unreachable(ill)
	}
	a := first.APIServer
	if name := v.verified(); name != "" && len(a.CertificateNames) > 0 && !covers(a.CertificateNames, name) {
		return broken(fmt.Sprintf("the serving certificate of %s has not the name %s that the kubeconfig verifies, but %s", a.Address, name, strings.Join(a.CertificateNames, ", ")),
			"mode "+string(v.tunnel.Status.Kubeconfig.Mode)+" needs that name in the certificate (SAN)", v.otherMode())
	}
	if !a.CertificateEnd.IsZero() && a.CertificateEnd.Sub(v.now()) < time.Hour {
		return warning(fmt.Sprintf("the serving certificate of %s ends at %s", a.Address, utc(a.CertificateEnd)), "nobody has renewed it", "renew it on the control-plane machine: kubeadm certs renew apiserver, or a rollout of the control plane")
	}
	detail := fmt.Sprintf("%s reaches %s", strings.Join(healthy, ", "), a.Address)
	if a.Version != "" {
		detail += ", " + a.Version
	}
	if ill != nil {
		f := v.unreachable(ill)
		return warning(detail+"; "+f.detail, f.cause, f.cure)
	}
	return ok("%s", detail)
}

// verified is the name that clients of the kubeconfig verify; empty: not known.
func (v *visit) verified() string {
	if v.config == nil || v.config.Insecure {
		return ""
	}
	if name := v.config.ServerName; name != "" {
		return name
	}
	return hostOf(v.config.Host)
}

// covers says whether names of a certificate are good for a host, as crypto/x509 decides it.
func covers(names []string, host string) bool {
	return slices.Contains(names, host) || (&x509.Certificate{DNSNames: names}).VerifyHostname(host) == nil
}

// unreachable says what it means that an edge does not reach the apiserver, by the edge's own words (pkg/probe).
func (v *visit) unreachable(e *observed.Edge) finding {
	a := e.APIServer
	detail := fmt.Sprintf("%s does not find %s well: %s", e.Node, a.Address, a.Message)
	address := "or put the address right: spec.apiServer of Tunnel " + v.key.Name + " is what edges dial, as seen from their network"
	switch {
	case strings.Contains(a.Message, "nothing listens there"):
		return broken(detail, "the apiserver is down, or listens elsewhere", "start the apiserver on the control-plane machine (crictl ps -a, its log), "+address)
	case strings.Contains(a.Message, "serving certificate"):
		return broken(detail, "the apiserver's serving certificate is not valid now: it has ended, or the clock of the edge is wrong", "renew it on the control-plane machine: kubeadm certs renew apiserver, and start the apiserver again; or put the clock right")
	case says(a.Message, "answers /readyz with status", "does not answer /readyz", "doesn't answer /readyz") && !says(a.Message, notAPIServer...):
		return broken(detail, "the apiserver runs and is not ready: what is named there is in the way, or it waits for its etcd", "see the log of the apiserver and of etcd on the control-plane machine")
	case strings.Contains(a.Message, "DNS"):
		return broken(detail, "the DNS of the edge's network does not know the apiserver's name", "bring DNS back there, "+address)
	case says(a.Message, "no route to it", "no way there"):
		return broken(detail, "the edge's machine has no route to the apiserver", "see the network of that machine, "+address)
	case says(a.Message, notAPIServer...):
		return broken(detail, "what answers there is no apiserver", address)
	case strings.Contains(a.Message, "in time"):
		return broken(detail, "the apiserver takes connections and says nothing, or packets to it are swallowed: it hangs, its machine does, or a firewall is in the way", "see the apiserver on the control-plane machine, "+address)
	}
	return broken(detail, "the edge does not reach the apiserver", "see the apiserver on the control-plane machine, "+address)
}

// notAPIServer are the parts of messages about a server that is not an apiserver, of this version and of earlier ones.
var notAPIServer = []string{"is not TLS", "is no TLS", "not an apiserver", "no apiserver"}

// says reports whether a message of an edge contains one of the texts: edges of earlier versions send other texts.
func says(message string, texts ...string) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(message, text) })
}
