package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/observed"
)

// checkAPIServer makes the edges probe the apiserver, and checks whether its certificate has the name that the
// kubeconfig verifies.
func checkAPIServer(ctx context.Context, v *visit) finding {
	if f := v.notObservable(); f != nil {
		return *f
	}
	edges, late := v.atAPIServer(ctx)
	f := v.judgeAPIServer(edges)
	if late != "" {
		f.detail += "; " + late
	}
	return f
}

// apiServerProbes are the results of the edges that were asked to probe their apiserver.
type apiServerProbes struct {
	all []collect.EdgeProbe
	err error // why no edge could be asked
}

// probe makes the edges probe the apiserver, once for all hops.
func (v *visit) probe(ctx context.Context) apiServerProbes {
	if v.probes == nil {
		v.probes = &apiServerProbes{}
		v.probes.all, v.probes.err = v.Servers.ProbeAPIServers(ctx, v.tunnel.HeldID())
	}
	return *v.probes
}

// of returns the result of one edge.
func (l apiServerProbes) of(node string) collect.EdgeProbe {
	if at := slices.IndexFunc(l.all, func(e collect.EdgeProbe) bool { return e.Node == node }); at >= 0 {
		return l.all[at]
	}
	if l.err != nil {
		return collect.EdgeProbe{Node: node, Problem: text(l.err)}
	}
	return collect.EdgeProbe{Node: node, Problem: "it is not connected to any xds-server that answered"}
}

// atAPIServer returns the connected edges with what they observe of the apiserver now or, if none of them does, with
// their reports. late is then true.
func (v *visit) atAPIServer(ctx context.Context) (all []observed.Edge, late string) {
	for _, e := range v.edges() {
		if e.Connected {
			all = append(all, e)
		}
	}
	if v.observed == nil || v.notObserved != "" {
		return all, "according to the Tunnel's status"
	}
	if len(all) == 0 {
		return nil, ""
	}
	seen := v.probe(ctx)
	var fresh []observed.Edge
	var others []string
	reached := false
	for _, e := range all {
		look := seen.of(e.Node)
		if look.APIServer == nil {
			others = append(
				others,
				fmt.Sprintf("%s did not probe now (%s): result reported %s ago", e.Node, look.Problem, e.Age.Round(time.Second)),
			)
			continue
		}
		e.APIServer = look.APIServer
		fresh = append(fresh, e)
		reached = reached || !e.APIServer.CertificateEnd.IsZero()
	}
	v.unreached = len(others) == 0 && !reached && len(v.silent()) == 0 && v.unheard() == ""
	if len(fresh) > 0 {
		all = fresh
	}
	return all, strings.Join(others, "; ")
}

// judgeAPIServer returns the finding for the observations of the edges.
func (v *visit) judgeAPIServer(edges []observed.Edge) finding {
	var healthy []string
	var ill, first *observed.Edge
	var certificate *finding
	for _, e := range edges {
		switch health := e.Health(); {
		case health == observed.HealthUnknown:
		case health == observed.Healthy:
			healthy = append(healthy, e.Node)
			if first == nil {
				first = &e
			}
			if f, faulty := v.servingCertificate(e.APIServer); faulty && (certificate == nil || f.status == Broken) {
				certificate = &f // each edge may have an apiserver of its own
			}
		case ill == nil:
			ill = &e
		}
	}
	switch {
	case first == nil && ill == nil:
		return skipped("no connected edge has reported")
	case first == nil:
		return v.unreachable(ill)
	case certificate != nil:
		return *certificate
	}
	a := first.APIServer
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

// servingCertificate returns the fault of a healthy apiserver's certificate, if it has one.
func (v *visit) servingCertificate(a *observed.APIServer) (f finding, faulty bool) {
	name := v.verified()
	if name != "" && len(a.CertificateNames) > 0 && !kubeconfig.Covered([][]string{a.CertificateNames}, name) {
		return broken(
			fmt.Sprintf(
				"the serving certificate of %s lacks the name %s that the kubeconfig verifies; it has %s", a.Address, name,
				strings.Join(a.CertificateNames, ", "),
			),
			"mode "+string(v.tunnel.Status.Kubeconfig.Mode)+" requires that name in the certificate (SAN)", v.otherMode(),
		), true
	}
	return warning(
		fmt.Sprintf("the serving certificate of %s expires at %s", a.Address, utc(a.CertificateEnd)), "it was not renewed",
		"renew it on the control-plane machine: kubeadm certs renew apiserver, or a rollout of the control plane",
	), !a.CertificateEnd.IsZero() && a.CertificateEnd.Sub(v.now()) < time.Hour
}

// verified returns the name that clients of the kubeconfig verify; empty: not known.
func (v *visit) verified() string {
	if v.config == nil || v.config.Insecure {
		return ""
	}
	if name := v.config.ServerName; name != "" {
		return name
	}
	return hostOf(v.config.Host)
}

// unreachable returns the finding for an edge that does not reach the apiserver.
func (v *visit) unreachable(e *observed.Edge) finding {
	a := e.APIServer
	cause, cure := explain.APIServer(a.Reason, v.key.Name)
	return broken(fmt.Sprintf("%s finds %s unhealthy: %s", e.Node, a.Address, a.Message), cause, cure)
}
