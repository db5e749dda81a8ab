package test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	checkcommand "github.com/fairlead/fairlead/internal/cli/check"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/cli/proxy"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
	"github.com/fairlead/fairlead/pkg/diagnose/traffic"
	"github.com/fairlead/fairlead/pkg/observed"
)

// The names of the tests of single parts.
const (
	testSNI     check.ID = "sni"
	testConnect check.ID = "connect"
	testAddress check.ID = "address"
	testGateway check.ID = "gateway"
	testEdge    check.ID = "edge-probe"
)

// modes tests each mode: that of the kubeconfig by its own address, the other one if the user has named an address.
func (t *tester) modes(ctx context.Context, w *ways) (all []check.Result) {
	own := w.tunnel.Status.Kubeconfig.Mode
	for _, mode := range []struct {
		id      check.ID
		mode    v1alpha1.KubeconfigMode
		address string
		way     func(string) (*traffic.Target, error)
	}{
		{testSNI, v1alpha1.KubeconfigModeSNI, t.flags.sni, w.bySNI},
		{testConnect, v1alpha1.KubeconfigModeConnect, t.flags.connect, w.byConnect},
	} {
		title := "mode " + string(mode.mode)
		switch {
		case mode.address != "":
			target, err := mode.way(mode.address)
			all = append(all, result(ctx, target, err, mode.id, title+" through "+mode.address))
		case mode.mode == own:
			target, err := w.own()
			all = append(all, result(ctx, target, err, mode.id, title+", as in the kubeconfig"))
		default:
			all = append(all, check.Result{
				ID: mode.id, Title: title, Status: check.Skipped,
				Detail: fmt.Sprintf("the kubeconfig has mode %s: to test %s too, use --%s=HOST:PORT", own, mode.mode, mode.id),
			})
		}
	}
	return all
}

// result tests one way. A way that does not exist is unknown.
func result(ctx context.Context, target *traffic.Target, err error, id check.ID, title string) check.Result {
	if err != nil {
		return check.Result{
			ID: id, Title: title, Status: check.Unknown, Detail: title + ": " + explain.Text(err),
			Cure: "see fairlead check",
		}
	}
	return target.TestRequest(ctx, id, title)
}

// addresses tests each address to which the name of the gateways resolves. A single address is that of the other
// tests.
func (t *tester) addresses(ctx context.Context, w *ways) (all []check.Result) {
	if t.flags.via != "" {
		return nil
	}
	addresses, err := w.addresses(ctx)
	if err != nil || len(addresses) < 2 {
		return nil // the hop name has reported the error
	}
	for _, address := range addresses {
		target, err := w.target(nil, traffic.Machine(address))
		all = append(all, result(ctx, target, err, testAddress, address))
	}
	return all
}

// gateways tests each gateway through a port-forward to its Pod.
func (t *tester) gateways(ctx context.Context, w *ways) (all []check.Result) {
	if !w.tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		return nil
	}
	gateways, err := proxy.EachGateway(ctx, t.m.Config, t.flags.Installation)
	if err != nil {
		return []check.Result{{
			ID: testGateway, Title: "each gateway", Status: check.Unknown, Detail: explain.Text(err),
			Cure: "run the command with the Role fairlead-proxy, and set --installation",
		}}
	}
	for _, g := range gateways {
		target, err := w.through(g.Connect)
		all = append(all, result(ctx, target, err, testGateway, g.Name()+", mode connect by a port-forward"))
	}
	return all
}

// edges lets each edge send a request to its apiserver. It adds how many tunnels carry the requests of clients.
func (t *tester) edges(ctx context.Context, w *ways) (all []check.Result) {
	tunnels := map[string]int{}
	for _, e := range observed.Recorded(w.tunnel, time.Now()) {
		if e.LetIn() {
			tunnels[e.Node] = e.Tunnels()
		}
	}
	const cure = "run the command as a user that may forward ports of the xds-servers, or pass --xds-server"
	if t.checker.Servers == nil {
		return []check.Result{{
			ID: testEdge, Title: "each edge", Status: check.Unknown,
			Detail: "the xds-servers cannot be queried from here", Cure: cure,
		}}
	}
	began := time.Now()
	probes, err := t.checker.Servers.ProbeAPIServers(ctx, w.tunnel.HeldID())
	if err != nil {
		return []check.Result{{
			ID: testEdge, Title: "each edge", Status: check.Unknown, Detail: explain.Text(err), Cure: cure,
		}}
	}
	for _, p := range probes {
		r := check.Result{ID: testEdge, Title: "edge " + p.Node, Seconds: time.Since(began).Seconds()}
		switch {
		case p.APIServer == nil:
			r.Status, r.Detail, r.Cure = check.Unknown, p.Node+": "+p.Problem, "see the hop handshake of fairlead check"
		case p.APIServer.Health() != observed.Healthy:
			r.Status, r.Detail = check.Broken, fmt.Sprintf("%s reaches no apiserver: %s", p.Node, p.APIServer.Message)
			r.Cause, r.Cure = explain.APIServer(p.APIServer.Reason, w.tunnel.Name)
		default:
			r.Status = check.OK
			r.Detail = fmt.Sprintf("%s: %s answers; %d tunnels carry requests", p.Node, p.APIServer.Address, tunnels[p.Node])
		}
		all = append(all, r)
	}
	return append(all, unreported(w.tunnel, probes)...)
}

// unreported returns a result for each edge on record that reports to no xds-server which answered. Its Envoy may carry
// requests of clients nevertheless.
func unreported(t *v1alpha1.Tunnel, probes []collect.EdgeProbe) (all []check.Result) {
	for _, e := range observed.Recorded(t, time.Now()) {
		if !e.LetIn() || slices.ContainsFunc(probes, func(p collect.EdgeProbe) bool { return p.Node == e.Node }) {
			continue
		}
		r := check.Result{
			ID: testEdge, Title: "edge " + e.Node, Status: check.Warning,
			Detail: e.Node + ": it reports to no xds-server that answered",
			Cause:  "its machine or its agent does not run, or it reaches no xds-server",
			Cure:   "see its log, or `fairlead edge revoke " + e.Node + "` if it will not return",
		}
		if e.HasTunnel() {
			r.Status = check.Unknown
		}
		all = append(all, r)
	}
	return all
}

// printTests writes the results of one Cluster: the hops in one line if all of them are healthy.
func printTests(p *output.Page, r *clusterReport) {
	healthy := 0
	var others []check.Result
	for _, h := range r.Hops {
		if h.Status == check.OK {
			healthy++
		} else {
			others = append(others, h)
		}
	}
	checkcommand.PrintResults(p, []check.Result{{
		ID: "hops", Status: check.OK, Seconds: r.Seconds,
		Detail: fmt.Sprintf("fairlead check: %d of %d hops are healthy", healthy, len(r.Hops)),
	}})
	checkcommand.PrintResults(p, others)
	checkcommand.PrintResults(p, r.Tests)
	for i := range r.Tests {
		if test := &r.Tests[i]; test.Status == check.Broken && r.First == test.ID {
			printFault(p, "The test "+string(test.ID)+" failed", test)
			break
		}
	}
	switch {
	case r.Hop != nil:
		printFault(p, "The hop "+string(r.Hop.ID)+" is "+string(r.Hop.Status), r.Hop)
	case r.Status == check.Broken:
		p.Line(output.Plain("fairlead check finds no broken hop."))
	}
}

// printFault writes why a test or a hop failed.
func printFault(p *output.Page, what string, r *check.Result) {
	p.Line(output.Styled(checkcommand.StyleOf(r.Status), what), output.Plain(": "+strings.TrimSpace(r.Detail)))
	p.Field("Likely cause", output.Plain(output.OrDash(r.Cause)))
	p.Field("What to do", output.Plain(output.OrDash(r.Cure)))
}
