package netpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// pod is a Pod with a network of its own.
type pod struct {
	*corev1.Pod
	node      string
	addresses []netip.Addr
}

// state is everything that the rules follow from.
type state struct {
	policies   []*networkingv1.NetworkPolicy
	namespaces map[string]labels.Set // by name
	pods       []pod
}

// A match is a set of addresses: all, the ones of Pods, or the ones of a block of addresses.
type match struct {
	all    bool
	pods   []pod
	block  netip.Prefix
	except []netip.Prefix
}

// rule is an ingress or an egress rule of a policy.
type rule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

// allowed returns the expressions for the packets of new connections that the policies allow for one direction of a
// Pod. isolated is false if no policy restricts that direction.
func (s *state) allowed(p pod, direction networkingv1.PolicyType) (expressions []string, isolated bool, err error) {
	for _, policy := range s.policies {
		if policy.Namespace != p.Namespace || !applies(policy, direction) {
			continue
		}
		selected, err := selects(&policy.Spec.PodSelector, p.Labels)
		if err != nil {
			return nil, false, fmt.Errorf("translating NetworkPolicy %s/%s: %w", policy.Namespace, policy.Name, err)
		}
		if !selected {
			continue
		}
		isolated = true
		for _, r := range rules(policy, direction) {
			lines, err := s.expressions(policy.Namespace, p, direction, r)
			if err != nil {
				return nil, false, fmt.Errorf("translating NetworkPolicy %s/%s: %w", policy.Namespace, policy.Name, err)
			}
			expressions = append(expressions, lines...)
		}
	}
	slices.Sort(expressions)
	return slices.Compact(expressions), isolated, nil
}

// applies reports whether a policy restricts a direction. The apiserver fills in policyTypes.
func applies(policy *networkingv1.NetworkPolicy, direction networkingv1.PolicyType) bool {
	return slices.Contains(policy.Spec.PolicyTypes, direction)
}

func rules(policy *networkingv1.NetworkPolicy, direction networkingv1.PolicyType) (all []rule) {
	if direction == networkingv1.PolicyTypeIngress {
		for _, r := range policy.Spec.Ingress {
			all = append(all, rule{r.From, r.Ports})
		}
		return all
	}
	for _, r := range policy.Spec.Egress {
		all = append(all, rule{r.To, r.Ports})
	}
	return all
}

func selects(selector *metav1.LabelSelector, set labels.Set) (bool, error) {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(set), err
}

// expressions translates one rule. An empty list of peers or of ports matches all.
func (s *state) expressions(namespace string, p pod, direction networkingv1.PolicyType, r rule) ([]string, error) {
	matches := []match{{all: true}}
	if len(r.peers) > 0 {
		matches = nil
	}
	for _, peer := range r.peers {
		m, err := s.match(namespace, peer)
		if err != nil {
			return nil, err
		}
		matches = append(matches, m)
	}
	var lines []string
	for _, m := range matches {
		if len(r.ports) == 0 {
			lines = append(lines, m.with(direction, "")...)
		}
		for _, port := range r.ports {
			lines = append(lines, s.withPort(p, direction, m, port)...)
		}
	}
	return lines, nil
}

// match returns the addresses of a peer.
func (s *state) match(namespace string, peer networkingv1.NetworkPolicyPeer) (m match, err error) {
	if peer.IPBlock != nil {
		if m.block, err = netip.ParsePrefix(peer.IPBlock.CIDR); err != nil {
			return match{}, err
		}
		for _, text := range peer.IPBlock.Except {
			except, err := netip.ParsePrefix(text)
			if err != nil {
				return match{}, err
			}
			m.except = append(m.except, except)
		}
		return m, nil
	}
	for _, p := range s.pods {
		selected := p.Namespace == namespace
		if peer.NamespaceSelector != nil {
			if selected, err = selects(peer.NamespaceSelector, s.namespaces[p.Namespace]); err != nil {
				return match{}, err
			}
		}
		if selected && peer.PodSelector != nil {
			if selected, err = selects(peer.PodSelector, p.Labels); err != nil {
				return match{}, err
			}
		}
		if selected {
			m.pods = append(m.pods, p)
		}
	}
	return m, nil
}

// withPort returns the expressions for the addresses of a match and one port. A named port is the one of the Pod that
// receives the connection, so that each Pod may have another number.
func (s *state) withPort(
	p pod, direction networkingv1.PolicyType, m match, port networkingv1.NetworkPolicyPort,
) (lines []string) {
	protocol := corev1.ProtocolTCP
	if port.Protocol != nil {
		protocol = *port.Protocol
	}
	transport := strings.ToLower(string(protocol))
	switch {
	case port.Port == nil:
		return m.with(direction, "meta l4proto "+transport)
	case port.Port.Type == intstr.Int && port.EndPort != nil:
		return m.with(direction, fmt.Sprintf("%s dport %d-%d", transport, port.Port.IntVal, *port.EndPort))
	case port.Port.Type == intstr.Int:
		return m.with(direction, fmt.Sprintf("%s dport %d", transport, port.Port.IntVal))
	case direction == networkingv1.PolicyTypeIngress:
		for _, number := range numbers(p, port.Port.StrVal, protocol) {
			lines = append(lines, m.with(direction, fmt.Sprintf("%s dport %d", transport, number))...)
		}
		return lines
	}
	for _, peer := range s.pods {
		for _, number := range numbers(peer, port.Port.StrVal, protocol) {
			for _, address := range peer.addresses {
				if m.contains(address) {
					lines = append(lines, fmt.Sprintf("%s daddr %s %s dport %d", family(address), address, transport, number))
				}
			}
		}
	}
	return lines
}

// numbers returns the ports of a Pod's containers that have a name, also of containers that start before the others.
func numbers(p pod, name string, protocol corev1.Protocol) (found []int32) {
	for _, container := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, port := range container.Ports {
			if port.Name == name && (port.Protocol == protocol || port.Protocol == "" && protocol == corev1.ProtocolTCP) {
				found = append(found, port.ContainerPort)
			}
		}
	}
	return found
}

func (m match) contains(address netip.Addr) bool {
	holds := func(prefix netip.Prefix) bool { return prefix.Contains(address) }
	return m.all || holds(m.block) && !slices.ContainsFunc(m.except, holds) ||
		slices.ContainsFunc(m.pods, func(p pod) bool { return slices.Contains(p.addresses, address) })
}

// with returns expressions for packets from (ingress) or to (egress) the addresses of a match that another expression
// matches too.
func (m match) with(direction networkingv1.PolicyType, other string) []string {
	field := " daddr "
	if direction == networkingv1.PolicyTypeIngress {
		field = " saddr "
	}
	join := func(parts ...string) string {
		return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), " ")
	}
	switch {
	case m.all:
		return []string{other}
	case m.block.IsValid():
		kind := family(m.block.Addr())
		parts := []string{kind + field + m.block.Masked().String()}
		for _, except := range m.except {
			parts = append(parts, kind+field+"!= "+except.Masked().String())
		}
		return []string{join(append(parts, other)...)}
	}
	addresses := map[string][]string{}
	for _, p := range m.pods {
		for _, address := range p.addresses {
			addresses[family(address)] = append(addresses[family(address)], address.String())
		}
	}
	var lines []string
	for kind, all := range addresses {
		slices.Sort(all)
		lines = append(lines, join(kind+field+"{ "+strings.Join(all, ", ")+" }", other))
	}
	return lines
}

// family returns the name of an address's protocol in nftables.
func family(address netip.Addr) string {
	if address.Is4() {
		return "ip"
	}
	return "ip6"
}
