package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
)

// judge returns a sentence on whether the hostname is served, or why it is not and what the user can do.
func (a *whyAnswer) judge(claims []*claim, holder *claim, domain model.TunnelDomain) {
	if holder == nil {
		a.Verdict, a.Cure = unserved(claims, a.Hostname, domain)
		return
	}
	if holder.resolution.Cluster.Prepared {
		a.Verdict = "Tunnel " + a.Cluster + " waits for its Cluster, which will be moved here; until then no client is served"
		a.Cure = "continue the move: `fairlead move --help`"
		return
	}
	total := 0
	for _, g := range a.Gateways {
		total += g.Tunnels
	}
	var without, empty []string
	for _, g := range a.Gateways {
		if g.Status != string(collect.Synced) {
			without = append(without, g.Name+" ("+g.Status+")")
		} else if g.Tunnels == 0 && (total == 0 || !g.Forwards) {
			empty = append(empty, g.Name)
		}
	}
	switch {
	case len(a.Gateways) == 0:
		a.Verdict, a.Cure = "the xds-servers know no gateway", "check the StatefulSet of the gateways, and --gateway of "+
			"the xds-servers"
	case len(without) > 0:
		a.Verdict = a.Cluster + " should be served by this name, but not every gateway serves it: " + strings.Join(
			without, ", ",
		)
		a.Cure = "`fairlead config sync` reports what is wrong with them"
	case len(empty) > 0:
		a.Verdict = "every gateway routes this name to " + a.Cluster + ", but no edge of it has a tunnel to " + strings.Join(
			empty, ", ",
		)
		a.Cure = "`fairlead check " + holder.tunnel.Name + " -n " + holder.tunnel.Namespace + "` names the broken hop"
	default:
		a.Served, a.Verdict = true, "every gateway routes this name to "+a.Cluster+", through tunnels of its edges"
	}
}

// unserved explains why no workload cluster is served under a name, and what to do.
func unserved(claims []*claim, hostname string, domain model.TunnelDomain) (verdict, cure string) {
	for _, c := range claims {
		if !c.claimed() {
			continue
		}
		own, err := domain.Hostname(c.candidate.Key)
		switch {
		case c.granted(hostname):
			verdict = fmt.Sprintf(
				"Tunnel %s should be served by this name, but the controller has not recorded it", c.candidate.Key,
			)
			return verdict, fmt.Sprintf(
				"check that the controller runs, and that the Cluster is not paused: `fairlead check %s -n %s`",
				c.tunnel.Name,
				c.tunnel.Namespace,
			)
		case c.resolution.Fatal != nil && err == nil && own == hostname:
			return fmt.Sprintf(
				"Tunnel %s claims this name, but is not served: %s", c.candidate.Key, c.resolution.Fatal.Error(),
			), c.resolution.Fatal.Cure
		case c.resolution.Fatal != nil && slices.Contains(c.candidate.ExtraNames, hostname):
			return fmt.Sprintf(
				"Tunnel %s claims this name as an extra name, but is not served: %s", c.candidate.Key, c.resolution.Fatal.Error(),
			), c.resolution.Fatal.Cure
		}
		for _, refused := range c.resolution.Refused {
			if refused.Value == hostname {
				return fmt.Sprintf(
					"Tunnel %s claims this name, but does not get it: %s", c.candidate.Key, refused.Error(),
				), refused.Cure
			}
		}
	}
	for _, c := range claims {
		if verdict, cure := idle(c, hostname, domain); verdict != "" {
			return verdict, cure
		}
	}
	if domain != "" && domain.Contains(hostname) {
		return "no Cluster has this tunnel hostname: it would be <cluster>.<namespace>." + string(domain),
			"`fairlead status -A` lists all Clusters with their hostnames"
	}
	return fmt.Sprintf("this name is not below the tunnel domain %s, and no Tunnel has it as an extra name", domain),
		"add it to spec.extraNames of the Tunnel whose serving certificate has it, or use the tunnel hostname"
}

// idle explains why a Cluster does not claim the name, if the name would be its own.
func idle(c *claim, hostname string, domain model.TunnelDomain) (verdict, cure string) {
	if c.claimed() {
		return "", ""
	}
	key := model.Key{}
	if c.cluster != nil {
		key = model.Key{Namespace: c.cluster.Namespace, Name: c.cluster.Name}
	} else {
		key = model.Key{Namespace: c.tunnel.Namespace, Name: c.tunnel.Name}
	}
	own, err := domain.Hostname(key)
	if (err != nil || own != hostname) && (c.tunnel == nil || !slices.Contains(c.tunnel.Spec.ExtraNames, hostname)) {
		return "", ""
	}
	switch {
	case c.tunnel == nil && c.cluster.Labels[v1alpha1.TunnelLabel] != v1alpha1.TunnelEnabled:
		return fmt.Sprintf(
				"Cluster %s has no tunnel: it lacks the label %s=%s",
				key,
				v1alpha1.TunnelLabel,
				v1alpha1.TunnelEnabled,
			),
			fmt.Sprintf(
				"kubectl label cluster -n %s %s %s=%s", key.Namespace, key.Name, v1alpha1.TunnelLabel, v1alpha1.TunnelEnabled,
			)
	case c.tunnel == nil:
		return fmt.Sprintf(
			"Cluster %s has opted in, but there is no Tunnel yet", key,
		), "the controller creates it: see its log and the events of the Cluster"
	case c.cluster == nil:
		return fmt.Sprintf(
			"there is a Tunnel %s, but no Cluster of that name", key,
		), "create the Cluster, or delete the Tunnel"
	case c.tunnel.ClaimedID() == "":
		return fmt.Sprintf("Tunnel %s has no id yet", key), "the controller sets it: see its log"
	case !c.tunnel.Spec.Kubeconfig.Mode.Tunnelled():
		return fmt.Sprintf(
			"Tunnel %s has the kubeconfig mode %s, which uses no tunnel", key, c.tunnel.Spec.Kubeconfig.Mode,
		), "choose another spec.kubeconfig.mode"
	default:
		return fmt.Sprintf(
			"Tunnel %s belongs to an earlier Cluster of that name", key,
		), "wait until it is deleted and the controller has created a new one"
	}
}

func (a *whyAnswer) view(now time.Time) output.View {
	return output.View{Data: a, Page: func(p *output.Page) {
		looks := output.StyleBad
		if a.Served {
			looks = output.StyleGood
		}
		p.Line(output.Styled(looks, a.Verdict))
		if a.Cure != "" {
			p.Line(output.Plain("→ " + a.Cure))
		}
		for _, text := range append(slices.Clone(a.Errors), a.Refused...) {
			p.Line(output.Styled(output.StyleWarning, text))
		}
		if len(a.Model) > 0 {
			p.Heading("Workload cluster " + a.Cluster)
			p.Table(originTable(a.Model, true))
		}
		if len(a.Envoy) > 0 {
			p.Heading("Envoy cluster " + a.Hostname)
			p.Table(originTable(a.Envoy, p.Wide))
			if !p.Wide {
				p.Line(output.Styled(output.StyleFaint, "fields that are the same for all workload clusters: -o wide"))
			}
		}
		if len(a.Gateways) > 0 {
			p.Heading("Gateways")
			t := &output.Table{Columns: output.Columns("GATEWAY", "STATUS", "VERSION", "SINCE~", "TUNNELS", "MESSAGE")}
			for _, g := range a.Gateways {
				since := "-"
				if g.Since != nil {
					since = output.Age(*g.Since, now)
				}
				t.Add(
					g.Name, g, output.Plain(g.Name), output.Styled(syncStyles[g.Status], g.Status),
					output.Plain(output.OrDash(short(g.Version))), output.Plain(since), output.Plain(strconv.Itoa(g.Tunnels)),
					output.Plain(output.OrDash(cutLine(g.Message, 160))),
				)
			}
			p.Table(t)
		}
	}}
}

// maxPath is how much of the end of a path a table shows. The end is the most specific part.
const maxPath = 64

func shortPath(path string) string {
	path = strings.ReplaceAll(path, ".typed_config", "")
	if len(path) > maxPath {
		path = "…" + path[len(path)-maxPath:]
	}
	return path
}

// originTable shows values and their fields. Values without a field are shown only if everything is true.
func originTable(all []origin, everything bool) *output.Table {
	t := &output.Table{Columns: output.Columns("FIELD", "VALUE", "FROM")}
	for _, o := range all {
		if o.From != "" || everything {
			t.Add(
				o.Field, o, output.Plain(shortPath(o.Field)), output.Plain(cutLine(o.Value, 100)),
				output.Plain(output.OrDash(o.From)),
			)
		}
	}
	return t
}
