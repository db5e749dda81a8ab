package netpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

const table = "inet netpolicy"

// ruleset is what a node enforces.
type ruleset struct {
	chains []string // of the node's isolated Pods
	text   string   // of all chains
}

// The chains of every node. A packet between two Pods of one node passes the rules of both: it is bridged, and the
// kernel passes bridged packets to these rules as well. The replies of an allowed connection need no rule, and no
// connection outlasts the policies that allow it: its own packets are checked each time. Packets of the node itself, as
// the kubelet's probes, are not forwarded.
const fixedChains = `
	chain forward {
		type filter hook forward priority filter; policy accept;
		ct direction reply accept
		ct state related accept
		icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept
		iifname "cni0" jump from-pods
		oifname "cni0" jump to-pods
	}
	chain denied {
		meta nfproto ipv4 meta l4proto { tcp, udp, sctp } \
			add @dropped4 { ip saddr . ip daddr . meta l4proto . th dport }
		meta nfproto ipv6 meta l4proto { tcp, udp, sctp } \
			add @dropped6 { ip6 saddr . ip6 daddr . meta l4proto . th dport }
		drop
	}
`

// prepare makes a table, unless it exists, and removes all of its rules but not what it has recorded.
const prepare = `
add table inet netpolicy
add set inet netpolicy dropped4 { type ipv4_addr . ipv4_addr . inet_proto . inet_service; flags dynamic; size 1000; }
add set inet netpolicy dropped6 { type ipv6_addr . ipv6_addr . inet_proto . inet_service; flags dynamic; size 1000; }
flush table inet netpolicy
`

// script returns what nft runs, as one transaction, to replace the rules that a node enforces.
func (r ruleset) script(before ruleset) string {
	var script strings.Builder
	script.WriteString(prepare)
	for _, chain := range before.chains {
		_, _ = fmt.Fprintf(&script, "delete chain %s %s\n", table, chain)
	}
	_, _ = fmt.Fprintf(&script, "table %s {%s}\n", table, strings.ReplaceAll(r.text, "\\\n", ""))
	return script.String()
}

// ruleset returns the rules of a node. Pods that no policy selects are not restricted. An address that no Pod has is
// one of a Pod that is not known yet, or not anymore: it has no network.
func (s *state) ruleset(node string) (ruleset, error) {
	var result ruleset
	var text strings.Builder
	verdicts := map[string][]string{} // by direction and family
	for _, p := range s.pods {
		if p.node != node {
			continue
		}
		for _, direction := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
			expressions, isolated, err := s.allowed(p, direction)
			if err != nil {
				return ruleset{}, err
			}
			verdict := "return"
			if isolated {
				chain := strings.ToLower(string(direction)) + "-" + p.Namespace + "/" + p.Name
				verdict = "goto " + chain
				result.chains = append(result.chains, chain)
				text.WriteString(chainOf(chain, p, direction, expressions))
			}
			for _, address := range p.addresses {
				key := string(direction) + family(address)
				verdicts[key] = append(verdicts[key], fmt.Sprintf("%s : %s", address, verdict))
			}
		}
	}
	text.WriteString(dispatch("from-pods", "saddr", networkingv1.PolicyTypeEgress, verdicts))
	text.WriteString(dispatch("to-pods", "daddr", networkingv1.PolicyTypeIngress, verdicts))
	result.text = fixedChains + text.String()
	return result, nil
}

// chainOf returns the chain for one direction of an isolated Pod. A Pod always reaches itself, also through a Service.
func chainOf(name string, p pod, direction networkingv1.PolicyType, expressions []string) string {
	own := match{pods: []pod{p}}.with(direction, "")
	slices.Sort(own)
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "\tchain %s {\n", name)
	for _, expression := range slices.Concat(own, expressions) {
		_, _ = fmt.Fprintf(&text, "\t\t%s\n", strings.TrimSpace(expression+" return"))
	}
	text.WriteString("\t\tgoto denied\n\t}\n")
	return text.String()
}

// dispatch returns the chain that selects the chain of a Pod by its address.
func dispatch(name, field string, direction networkingv1.PolicyType, verdicts map[string][]string) string {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "\tchain %s {\n", name)
	for _, kind := range []string{"ip", "ip6"} {
		if all := verdicts[string(direction)+kind]; len(all) > 0 {
			slices.Sort(all)
			_, _ = fmt.Fprintf(&text, "\t\t%s %s vmap { %s }\n", kind, field, strings.Join(all, ", "))
		}
	}
	text.WriteString("\t\tdrop\n\t}\n")
	return text.String()
}

// Flow is a kind of connection: from an address to a port of another one.
type Flow struct {
	From, To netip.Addr
	Protocol string
	Port     int
}

func (f Flow) String() string {
	return fmt.Sprintf("%s to %s %s", f.From, netip.AddrPortFrom(f.To, uint16(f.Port)), f.Protocol)
}
