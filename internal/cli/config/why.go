package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/model"
)

func configWhyCommand() *cobra.Command {
	var f configFlags
	cmd := &cobra.Command{
		Use:   "why HOSTNAME",
		Short: "Explain which workload cluster a hostname leads to, and why",
		Long: strings.TrimSpace(`
Explain where a hostname leads: from the Cluster and the Tunnel that own it to its Envoy cluster on each
gateway, field by field, or why it is not served. The hostname is the one that clients send by SNI or CONNECT.

Needs: list on Clusters and Tunnels; in the namespace of the installation, list on Pods and create on
pods/portforward.
Changes: nothing.
Exit codes: 0 all gateways serve the hostname; 1 a gateway does not serve it, or the command failed; 2 the
command line is invalid.`),
		Example: "  fairlead config why c1.prod.tunnels.example.com\n  fairlead config why api.c1.example.com -o wide",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.Validate(); err != nil {
				return err
			}
			m, err := f.Open()
			if err != nil {
				return err
			}
			servers, err := f.Connect(cmd.Context(), m)
			if err != nil {
				return err
			}
			defer servers.Close()
			answer, err := why(cmd.Context(), m, servers, args[0], time.Now())
			if err != nil {
				return err
			}
			if err := f.Print(cmd, answer.view(time.Now())); err != nil {
				return err
			}
			if !answer.Served {
				return output.Broken()
			}
			return nil
		},
	}
	f.addTo(cmd)
	f.Options.AddTo(cmd)
	return cmd
}

// origin is a value and the field that it comes from.
type origin struct {
	Field string `json:"field"`
	Value string `json:"value"`
	From  string `json:"from,omitempty"` // field of an object; empty: the same for all workload clusters
}

// gatewayWhy is what a gateway has under the hostname.
type gatewayWhy struct {
	Name    string     `json:"name"`
	Status  string     `json:"status"`
	Version string     `json:"version,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	Message string     `json:"message,omitempty"`
	Tunnels int        `json:"tunnels"`
	// Forwards: the gateway sends clients for which it has no tunnel to another gateway.
	Forwards bool `json:"forwards,omitempty"`
}

// whyAnswer is the result for a hostname.
type whyAnswer struct {
	Hostname string       `json:"hostname"`
	Served   bool         `json:"served"` // by every gateway of the installation
	Verdict  string       `json:"verdict"`
	Cure     string       `json:"cure,omitempty"`
	Cluster  string       `json:"cluster,omitempty"` // namespace/name
	Refused  []string     `json:"refused,omitempty"` // the parts of the Tunnel that are ignored
	Model    []origin     `json:"model,omitempty"`   // of the workload cluster
	Envoy    []origin     `json:"envoy,omitempty"`   // of the Envoy cluster
	Gateways []gatewayWhy `json:"gateways,omitempty"`
	Errors   []string     `json:"errors,omitempty"` // of servers that did not answer
}

// claim is an object that claims names, and the result of its claims.
type claim struct {
	cluster    *clusterv1.Cluster
	tunnel     *v1alpha1.Tunnel
	candidate  decision.Candidate
	resolution decision.Resolution
}

func why(
	ctx context.Context, m *management.Client, servers *collect.Servers, hostname string, now time.Time,
) (*whyAnswer, error) {
	fleet, err := servers.Fleet(ctx)
	if err != nil {
		return nil, err
	}
	answer := &whyAnswer{Hostname: plainHost(hostname)}
	for _, err := range fleet.Silent() {
		answer.Errors = append(answer.Errors, err.Error())
	}
	claims, err := readClaims(ctx, m, fleet.Domain, now)
	if err != nil {
		return nil, err
	}
	holder := holderOf(claims, answer.Hostname)
	if holder != nil {
		answer.describe(holder, fleet.Domain)
	}
	if err := answer.ask(ctx, servers, fleet, holder); err != nil {
		return nil, err
	}
	answer.judge(claims, holder, fleet.Domain)
	return answer, nil
}

// plainHost returns a pasted hostname in lower case without https://, path, port and trailing dot.
func plainHost(text string) string {
	text = strings.ToLower(strings.TrimSpace(text))
	text = strings.TrimPrefix(text, "https://")
	text, _, _ = strings.Cut(text, "/")
	if host, port, ok := strings.Cut(text, ":"); ok {
		if _, err := strconv.Atoi(port); err == nil {
			text = host
		}
	}
	return strings.TrimSuffix(text, ".")
}

// readClaims reads all objects, and decides about their names like the controller.
func readClaims(ctx context.Context, m *management.Client, domain model.TunnelDomain, now time.Time) ([]*claim, error) {
	var clusters clusterv1.ClusterList
	var tunnels v1alpha1.TunnelList
	if err := errors.Join(m.List(ctx, &clusters), m.List(ctx, &tunnels)); err != nil {
		return nil, fmt.Errorf("listing Clusters and Tunnels: %w", err)
	}
	byKey := map[client.ObjectKey]*clusterv1.Cluster{}
	for i := range clusters.Items {
		byKey[client.ObjectKeyFromObject(&clusters.Items[i])] = &clusters.Items[i]
	}
	var claims, all []*claim
	var candidates []decision.Candidate
	for i := range tunnels.Items {
		c := &claim{tunnel: &tunnels.Items[i], cluster: byKey[client.ObjectKeyFromObject(&tunnels.Items[i])]}
		delete(byKey, client.ObjectKeyFromObject(c.tunnel))
		all = append(all, c)
		var ok bool
		if c.candidate, ok = decision.Claimant(c.cluster, c.tunnel, now); ok {
			claims, candidates = append(claims, c), append(candidates, c.candidate)
		}
	}
	for _, cluster := range byKey {
		all = append(all, &claim{cluster: cluster})
	}
	for i, resolution := range decision.Build(domain, &decision.Names{}, candidates) {
		claims[i].resolution = resolution
	}
	return all, nil
}

// claimed reports whether the object claims any name.
func (c *claim) claimed() bool { return c.candidate.Key != (model.Key{}) }

// holderOf returns the claim of the Tunnel to which the controller has granted a name, and which still claims it, or
// nil.
func holderOf(claims []*claim, hostname string) *claim {
	for _, c := range claims {
		if c.granted(hostname) && c.tunnel.HeldID() != "" && slices.Contains(c.tunnel.Status.Names, hostname) {
			return c
		}
	}
	return nil
}

// granted reports whether the current objects give a name to this Tunnel. It is served once the controller has recorded
// that.
func (c *claim) granted(hostname string) bool {
	return c.claimed() && c.resolution.Fatal == nil && slices.Contains(c.resolution.Cluster.Names(), hostname)
}

// describe names the fields that determine the resources of the gateways and edges.
func (a *whyAnswer) describe(c *claim, domain model.TunnelDomain) {
	w := c.resolution.Cluster
	a.Cluster = w.Key.String()
	for _, refused := range c.resolution.Refused {
		a.Refused = append(a.Refused, refused.Error())
	}
	add := func(field, value, from string) { a.Model = append(a.Model, origin{field, value, from}) }
	add("hostname", w.Hostname, "Cluster metadata.name and metadata.namespace, tunnel domain "+string(domain))
	for _, name := range w.ExtraNames {
		from := "Tunnel status.kubeconfig.endpointName"
		if i := slices.Index(c.tunnel.Spec.ExtraNames, name); i >= 0 {
			from = fmt.Sprintf("Tunnel spec.extraNames[%d]", i)
		}
		add("extra name", name, from)
	}
	add("id", w.ID, "Tunnel spec.id")
	add("apiserver", w.APIServer.String(), apiServerFrom(c))
	for i, other := range w.Others {
		add("further apiserver", other.String(), fmt.Sprintf("Tunnel spec.apiServer.others[%d]", i))
	}
	if w.Limits.Connections > 0 {
		add("connections", strconv.FormatInt(w.Limits.Connections, 10), "Tunnel spec.limits.connections")
	}
	if w.Limits.Pending > 0 {
		add("pending connections", strconv.FormatInt(w.Limits.Pending, 10), "Tunnel spec.limits.pendingConnections")
	}
	if w.Limits.Bandwidth > 0 {
		add("bandwidth", strconv.FormatInt(w.Limits.Bandwidth, 10)+" bytes/s", "Tunnel spec.limits.bandwidth")
	}
	for i, node := range w.Revoked {
		add("revoked edge", node, fmt.Sprintf("Tunnel spec.revokedEdges[%d]", i))
	}
}

func apiServerFrom(c *claim) string {
	switch {
	case c.tunnel.Spec.APIServer.Address != "":
		return "Tunnel spec.apiServer.address"
	case c.cluster != nil && c.cluster.Spec.ControlPlaneEndpoint.Host != "":
		return "Cluster spec.controlPlaneEndpoint"
	default:
		return "default: neither Tunnel nor Cluster sets it"
	}
}

// ask queries what each gateway has under the name.
func (a *whyAnswer) ask(ctx context.Context, servers *collect.Servers, fleet collect.Fleet, holder *claim) error {
	nodes, err := servers.Resources(ctx, a.Hostname, peers.SNIListener)
	if err != nil && len(nodes) == 0 && len(a.Errors) == 0 {
		return err
	}
	doubt := err != nil
	tunnels := map[string]int{}
	for _, t := range fleet.Tunnels {
		if holder != nil && t.ID == holder.candidate.ID {
			tunnels[t.Gateway]++
		}
	}
	for _, g := range fleet.Gateways {
		if !g.Installed {
			continue
		}
		row := gatewayWhy{
			Name:    g.Name,
			Tunnels: tunnels[g.Name],
			Since:   pointer(g.DisconnectedSince()),
		}
		row.Status, row.Message = unreported(doubt)
		i := slices.IndexFunc(nodes, func(n collect.Node) bool { return n.Name == g.Name })
		if i >= 0 {
			row.Status, row.Message, row.Since = "NONE", "it was not sent this name", nil
			for _, r := range nodes[i].Resources {
				if r.Name == peers.SNIListener {
					row.Forwards = peers.Forwards(r.Config)
					continue
				}
				row.Status, row.Version, row.Since, row.Message = string(r.Status), r.Version, pointer(r.Since), r.Refusal
				if a.Envoy == nil {
					if a.Envoy, err = fieldsOf(r, a.Model); err != nil {
						return err
					}
				}
			}
		}
		a.Gateways = append(a.Gateways, row)
	}
	return nil
}
