package check

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
	"github.com/fairlead/fairlead/pkg/observed"
)

// checkEdge checks whether an edge has a valid certificate and, if none has, what prevents it: the bootstrap Secret,
// its token, or a denied request.
func checkEdge(ctx context.Context, v *visit) finding {
	if f := v.notObservable(); f != nil {
		return *f
	}
	var good, ended, revoked []string
	for _, e := range observed.Recorded(v.tunnel, v.now()) {
		switch name := nameOf(&e); {
		case e.Revoked():
			revoked = append(revoked, name)
		case e.HoldsCertificate(v.now()):
			good = append(good, fmt.Sprintf("%s, certificate valid for %s", name, e.NotAfter.Sub(v.now()).Round(time.Minute)))
		default:
			ended = append(ended, name+" expired at "+utc(e.NotAfter))
		}
	}
	switch {
	case len(good) > 0:
		if f := v.clocks(); f != nil {
			return *f
		}
		return ok("%s", strings.Join(good, "; "))
	case len(ended) > 0:
		return broken(
			"the certificates of all edges have expired: "+strings.Join(ended, "; "),
			"the edge could not renew it: it had no control channel for longer than a certificate is valid, or no controller "+
				"signed. "+v.controllerDown(
				ctx,
			),
			"restore the edge: it renews an expired certificate with its key, for 90 days, as soon as it reaches the control "+
				"channel; see the log of edge-agent on that machine",
		)
	case len(revoked) > 0:
		f := v.notEnrolled(ctx)
		return broken(
			"all edges are revoked: "+strings.Join(revoked, ", "),
			"it was revoked (fairlead edge revoke, or spec.revokedEdges of the Tunnel)",
			"enrol another edge: start edge-agent with the bootstrap file in "+
				"Secret "+v.key.Name+v1alpha1.BootstrapSecretSuffix+" and an empty state folder. "+f.cure,
		)
	}
	return v.notEnrolled(ctx)
}

// nameOf returns the node name of an edge with its host, if that is known.
func nameOf(e *observed.Edge) string {
	if e.Host == "" {
		return e.Node
	}
	return e.Node + " on " + e.Host
}

// clocks returns a warning about the clock that an edge reports; nil: none.
func (v *visit) clocks() *finding {
	for _, e := range v.edges() {
		if strings.Contains(e.LastError, "clock") {
			f := v.worse(
				e.Node+" reports: "+e.LastError, "the clock of the edge's machine or of the management cluster is wrong",
				"correct the clock (NTP) on the machine of "+e.Node,
			)
			return &f
		}
	}
	return nil
}

// worse returns a broken finding while there is no tunnel, and otherwise a warning.
func (v *visit) worse(detail, cause, cure string) finding {
	if v.cutOff {
		return broken(detail, cause, cure)
	}
	return warning(detail, cause, cure)
}

// edges returns the edges that are let in, from the xds-servers or else from the record.
func (v *visit) edges() (all []observed.Edge) {
	if v.observed != nil && v.notObserved == "" {
		for _, e := range v.observed.Edges {
			if !v.revoked(e.Node) {
				all = append(all, e)
			}
		}
		return all
	}
	for _, e := range observed.Recorded(v.tunnel, v.now()) {
		if !e.Revoked() {
			all = append(all, e)
		}
	}
	return all
}

// checkHandshake checks the problems that edges report, and the edges that report and have no tunnel.
func checkHandshake(ctx context.Context, v *visit) finding {
	if f := v.notObservable(); f != nil {
		return *f
	}
	var connected []string
	var complaint *observed.Edge
	for _, e := range v.edges() {
		if !e.Connected {
			continue
		}
		connected = append(connected, e.Node)
		if e.LastError != "" && complaint == nil {
			complaint = &e
		}
	}
	switch {
	case complaint != nil:
		return v.edgeError(complaint)
	case len(connected) == 0 && v.cutOff:
		if refused := v.refusal(true); refused != "" {
			return broken(
				refused,
				"if that is this Cluster's edge, it rejects the certificate of the control channel: its clock is wrong, or the "+
					"CA in its bootstrap file is another installation's",
				"correct the clock of that machine (NTP); otherwise start edge-agent with the newest bootstrap file",
			)
		}
		return skipped("no connected edge has reported")
	case len(v.silent()) > 0:
		return warning(
			strings.Join(v.silent(), ", ")+" has tunnels, but does not report",
			"edge-agent on that machine is down or frozen, or does not reach the control channel: a wrong --proxy, or TLS "+
				"inspection on the path; its Envoy keeps its last configuration until its certificate expires",
			"on that machine check that edge-agent runs (systemctl status edge-agent), and read its log",
		)
	case len(connected) == 0:
		return skipped("no edge is connected to the control channel")
	case v.cutOff:
		if mute := v.mute(ctx, connected); mute != "" {
			return skipped(mute)
		}
		return broken(
			strings.Join(connected, ", ")+" is connected to the control channel, but has no tunnel",
			"the handshake of its tunnels fails: the network passes the control channel but blocks tunnels, or its Envoy does "+
				"not run",
			"see the logs of edge-agent and Envoy on that machine, and exempt this name from TLS inspection: "+
				"gateway-<i>."+domainOf(
				v.tunnel,
			),
		)
	}
	return ok("%s: no errors reported", strings.Join(connected, ", "))
}

// mute describes that no edge answers although the control channels of some are still open. If a network drops all
// packets, the keepalive of a control channel detects that later than the keepalive of the tunnels. It returns an empty
// string if one answers or none could be asked.
func (v *visit) mute(ctx context.Context, connected []string) string {
	if v.observed == nil || v.notObserved != "" {
		return ""
	}
	seen := v.probe(ctx)
	if seen.err != nil {
		return ""
	}
	var all []string
	for _, node := range connected {
		answer := seen.of(node)
		if answer.APIServer != nil {
			return ""
		}
		all = append(all, node+" has an open control channel, but does not answer ("+answer.Problem+")")
	}
	return strings.Join(all, "; ")
}

// silent returns the edges that have tunnels and do not report, once every agent has had time to. If an xds-server did
// not answer, that is not known.
func (v *visit) silent() []string {
	if v.observed == nil || v.notObserved != "" || v.unheard() != "" {
		return nil
	}
	return v.observed.Unreported(v.revoked)
}

// fresh is the greatest age of a relevant rejection: rejected agents retry every few seconds.
const fresh = time.Minute

// refusal returns the newest recent rejection of a handshake, or of a token; empty: there is none.
func (v *visit) refusal(handshake bool) string {
	if v.observed == nil {
		return ""
	}
	for _, r := range v.observed.Refusals {
		// Only handshakes count that the machine has ended because of a certificate; others come from port
		// scanners.
		if (r.About == collect.AboutHandshake) != handshake || v.now().Sub(r.Last) > fresh ||
			handshake && !strings.Contains(r.Reason, "certificate") {
			continue
		}
		if handshake {
			return fmt.Sprintf(
				"a machine at %s rejected the handshake with an xds-server at %s: %s", r.Address, utc(r.Last), r.Reason,
			)
		}
		return fmt.Sprintf("a machine at %s was refused a certificate at %s: %s", r.Address, utc(r.Last), r.Reason)
	}
	return ""
}

// domainOf returns the tunnel domain from a Tunnel's hostname.
func domainOf(t *v1alpha1.Tunnel) string {
	parts := strings.SplitN(t.Status.Hostname, ".", 3)
	if len(parts) < 3 {
		return "<tunnel domain>"
	}
	return parts[2]
}

// edgeError returns the finding for a problem that an edge reports.
func (v *visit) edgeError(e *observed.Edge) finding {
	cause, cure := explain.Edge(e.LastError)
	return v.worse(e.Node+" reports: "+e.LastError, cause, cure)
}
