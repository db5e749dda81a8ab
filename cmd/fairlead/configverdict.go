package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/inspect"
	"github.com/fairlead/fairlead/pkg/model"
)

// judge says in a sentence whether the hostname is served, and else why it is not and what to do.
func (a *whyAnswer) judge(claims []*claim, holder *claim, domain model.TunnelDomain) {
	if holder == nil {
		a.Verdict, a.Cure = unserved(claims, a.Hostname, domain)
		return
	}
	if holder.resolution.Cluster.Prepared {
		a.Verdict = "Tunnel " + a.Cluster + " waits for its Cluster, which is to be moved here; until then no client is served"
		a.Cure = "go on with the move: `fairlead move --help`"
		return
	}
	var without, empty []string
	for _, g := range a.Gateways {
		if g.Status != string(inspect.Synced) {
			without = append(without, g.Name+" ("+g.Status+")")
		} else if g.Tunnels == 0 {
			empty = append(empty, g.Name)
		}
	}
	switch {
	case len(a.Gateways) == 0:
		a.Verdict, a.Cure = "the xds-servers know no gateway", "look at the StatefulSet of the gateways, and at --gateway of the xds-servers"
	case len(without) > 0:
		a.Verdict = a.Cluster + " is to be served by this name, but not by every gateway as it should be: " + strings.Join(without, ", ")
		a.Cure = "`fairlead config sync` says what is wrong with them"
	case len(empty) > 0:
		a.Verdict = "every gateway leads this name to " + a.Cluster + ", but no edge of it has a tunnel to " + strings.Join(empty, ", ")
		a.Cure = "`fairlead check " + holder.tunnel.Name + " -n " + holder.tunnel.Namespace + "` says which hop is broken"
	default:
		a.Served, a.Verdict = true, "every gateway leads this name to "+a.Cluster+", through tunnels of its edges"
	}
}

// unserved says why nobody is served by a name, and what to do.
func unserved(claims []*claim, hostname string, domain model.TunnelDomain) (verdict, cure string) {
	for _, c := range claims {
		if !c.claimed() {
			continue
		}
		own, err := domain.Hostname(c.candidate.Key)
		switch {
		case c.granted(hostname):
			verdict = fmt.Sprintf("Tunnel %s is to be served by this name, but the controller has not recorded that", c.candidate.Key)
			return verdict, fmt.Sprintf("see whether the controller runs, and whether the Cluster is paused: `fairlead check %s -n %s`",
				c.tunnel.Name, c.tunnel.Namespace)
		case c.resolution.Fatal != nil && err == nil && own == hostname:
			return fmt.Sprintf("Tunnel %s claims this name, but is not served: %s", c.candidate.Key, c.resolution.Fatal.Error()), c.resolution.Fatal.Cure
		case c.resolution.Fatal != nil && slices.Contains(c.candidate.ExtraNames, hostname):
			return fmt.Sprintf("Tunnel %s claims this name as an extra name, but is not served at all: %s", c.candidate.Key, c.resolution.Fatal.Error()), c.resolution.Fatal.Cure
		}
		for _, refused := range c.resolution.Refused {
			if refused.Value == hostname {
				return fmt.Sprintf("Tunnel %s claims this name, but does not get it: %s", c.candidate.Key, refused.Error()), refused.Cure
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
		"put it into spec.extraNames of the Tunnel whose serving certificate has it, or use its tunnel hostname"
}

// idle says why a Cluster claims nothing, if the name would be its own.
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
		return fmt.Sprintf("Cluster %s has no tunnel: it has not the label %s=%s", key, v1alpha1.TunnelLabel, v1alpha1.TunnelEnabled),
			fmt.Sprintf("kubectl label cluster -n %s %s %s=%s", key.Namespace, key.Name, v1alpha1.TunnelLabel, v1alpha1.TunnelEnabled)
	case c.tunnel == nil:
		return fmt.Sprintf("Cluster %s is to have a tunnel, but there is no Tunnel yet", key), "the controller makes it: look at its log and at the events of the Cluster"
	case c.cluster == nil:
		return fmt.Sprintf("there is a Tunnel %s, but no Cluster of that name", key), "create the Cluster, or delete the Tunnel"
	case c.tunnel.ClaimedID() == "":
		return fmt.Sprintf("Tunnel %s has no id yet", key), "the controller gives it one: look at its log"
	case !c.tunnel.Spec.Kubeconfig.Mode.Tunnelled():
		return fmt.Sprintf("Tunnel %s has the kubeconfig mode %s, which leads through no tunnel", key, c.tunnel.Spec.Kubeconfig.Mode), "choose another spec.kubeconfig.mode"
	default:
		return fmt.Sprintf("Tunnel %s belongs to an earlier Cluster of that name", key), "wait until it is deleted, and the controller makes a new one"
	}
}

func (a *whyAnswer) view(now time.Time) view {
	return view{Data: a, Page: func(p *page) {
		looks := moodBad
		if a.Served {
			looks = moodGood
		}
		p.line(in(looks, a.Verdict))
		if a.Cure != "" {
			p.line(plain("→ " + a.Cure))
		}
		for _, text := range append(slices.Clone(a.Errors), a.Refused...) {
			p.line(in(moodWarning, text))
		}
		if len(a.Model) > 0 {
			p.heading("Workload cluster " + a.Cluster)
			p.table(originTable(a.Model, true))
		}
		if len(a.Envoy) > 0 {
			p.heading("Envoy cluster " + a.Hostname)
			p.table(originTable(a.Envoy, p.wide))
			if !p.wide {
				p.line(in(moodFaint, "fields that are the same for all workload clusters: -o wide"))
			}
		}
		if len(a.Gateways) > 0 {
			p.heading("Gateways")
			t := &table{columns: columns("GATEWAY", "STATUS", "VERSION", "SINCE~", "TUNNELS", "MESSAGE")}
			for _, g := range a.Gateways {
				since := "-"
				if g.Since != nil {
					since = age(*g.Since, now)
				}
				t.add(g.Name, g, plain(g.Name), in(syncMoods[g.Status], g.Status), plain(orDash(short(g.Version))), plain(since), plain(strconv.Itoa(g.Tunnels)), plain(orDash(cutLine(g.Message, 160))))
			}
			p.table(t)
		}
	}}
}

// maxPath is how much of a path a table shows: its end, which says most.
const maxPath = 64

func shortPath(path string) string {
	path = strings.ReplaceAll(path, ".typed_config", "")
	if len(path) > maxPath {
		path = "…" + path[len(path)-maxPath:]
	}
	return path
}

// originTable shows values with where they come from; those of nowhere only if all are asked for.
func originTable(all []origin, everything bool) *table {
	t := &table{columns: columns("FIELD", "VALUE", "FROM")}
	for _, o := range all {
		if o.From != "" || everything {
			t.add(o.Field, o, plain(shortPath(o.Field)), plain(cutLine(o.Value, 100)), plain(orDash(o.From)))
		}
	}
	return t
}
