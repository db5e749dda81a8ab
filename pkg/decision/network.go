package decision

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// neverProblem is the problem of addresses in model.NeverDialled.
const neverProblem = "edges never dial loopback, link-local, multicast and metadata addresses"

// defaultTargetPort is the port of a target that names none.
const defaultTargetPort = 443

// MaxNetworks is how many networks of one Cluster are served. A change of one network is reconciled with all others of
// its Cluster, and the gateways get all of them as one resource.
const MaxNetworks = 256

// NetworkFacts is the unvalidated input from a RemoteNetwork, its Cluster and the installation.
type NetworkFacts struct {
	Name     string    // of the RemoteNetwork
	Cluster  model.Key // that has the network
	CIDRs    []string
	Suffixes []string
	Ports    []v1alpha1.NetworkPort
	Targets  []v1alpha1.NetworkTarget
	// Siblings are the CIDRs of the other networks of the Cluster that may be served.
	Siblings []string
	// Excess is true if the Cluster has MaxNetworks older networks.
	Excess bool
	// Pods and Services are the CIDRs of the Cluster.
	Pods, Services []string
	// Gateways are the known addresses of the gateways.
	Gateways []netip.Addr
	// EgressID, APIServers and APIServerID are as in model.Network.
	EgressID    string
	APIServers  []model.Endpoint
	APIServerID string
}

// NetworkSettings are the settings of an installation that a decision about a network depends on.
type NetworkSettings struct {
	// Gateways are the known addresses of the gateways.
	Gateways []netip.Addr
	// APIServers are the networks in which gateways may dial the endpoint of a Cluster for the machines of a network.
	APIServers []netip.Prefix
}

// NetworkOwners are the objects that decide about the Tunnel of a network; nil: an object does not exist.
type NetworkOwners struct {
	Network *v1alpha1.RemoteNetwork
	Cluster *clusterv1.Cluster       // that Network names
	Tunnel  *v1alpha1.Tunnel         // of the Cluster
	Egress  *v1alpha1.Tunnel         // of the apiservers of the Cluster
	Others  []v1alpha1.RemoteNetwork // the other networks of the Cluster
}

// NetworkCandidate combines a Tunnel with the objects that decide about it. It returns false if there is nothing to
// serve: if the RemoteNetwork or its Cluster does not exist, if the Tunnel has no id yet, or if the Tunnel belongs to
// another RemoteNetwork.
func NetworkCandidate(tunnel *v1alpha1.Tunnel, o NetworkOwners, s NetworkSettings) (Candidate, bool) {
	if o.Network == nil || o.Cluster == nil || tunnel == nil || tunnel.ClaimedID() == "" ||
		o.Network.Spec.ClusterName != o.Cluster.Name || tunnel.Spec.Network != o.Network.Name ||
		!metav1.IsControlledBy(tunnel, o.Network) {
		return Candidate{}, false
	}
	spec := o.Network.Spec
	facts := &NetworkFacts{
		Name: o.Network.Name, Cluster: model.Key{Namespace: o.Cluster.Namespace, Name: o.Cluster.Name},
		CIDRs: spec.CIDRs, Suffixes: spec.DNSSuffixes, Ports: spec.Ports, Targets: spec.Targets,
		Pods: o.Cluster.Spec.ClusterNetwork.Pods.CIDRBlocks, Services: o.Cluster.Spec.ClusterNetwork.Services.CIDRBlocks,
		Gateways: s.Gateways, EgressID: egressID(o.Egress, o.Cluster),
	}
	facts.Excess = true
	for _, n := range OldestNetworks(append(slices.Clone(o.Others), *o.Network)) {
		if n.Name == o.Network.Name {
			facts.Excess = false
		} else {
			facts.Siblings = append(facts.Siblings, n.Spec.CIDRs...)
		}
	}
	to := ForwardTo(o.Cluster, o.Tunnel, s)
	facts.APIServers, facts.APIServerID = to.Addresses, to.TunnelID
	return Candidate{
		Key: model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}, ClusterUID: o.Cluster.UID,
		Created: o.Network.CreationTimestamp.Time, ID: tunnel.ClaimedID(), Limits: limits(tunnel.Spec.Limits),
		Revoked: tunnel.Spec.RevokedEdges, Held: onRecord(tunnel.Namespace, tunnel.Status), Network: facts,
	}, true
}

// OldestNetworks returns those of the networks of one Cluster that may be served, by their age: at most MaxNetworks. It
// may change the order of all.
func OldestNetworks(all []v1alpha1.RemoteNetwork) []v1alpha1.RemoteNetwork {
	if len(all) <= MaxNetworks {
		return all
	}
	slices.SortFunc(all, func(a, b v1alpha1.RemoteNetwork) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return all[:MaxNetworks]
}

// EgressCandidate returns the claims of the Tunnel of a Cluster's apiservers. It returns false if the Tunnel has no id
// yet, or is not this Cluster's.
func EgressCandidate(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) (Candidate, bool) {
	if cluster == nil || tunnel == nil || tunnel.ClaimedID() == "" || tunnel.Spec.EgressOf != cluster.Name ||
		!metav1.IsControlledBy(tunnel, cluster) {
		return Candidate{}, false
	}
	return Candidate{
		Key: model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}, ClusterUID: cluster.UID,
		Created: tunnel.CreationTimestamp.Time, ID: tunnel.ClaimedID(), Limits: limits(tunnel.Spec.Limits),
		Revoked: tunnel.Spec.RevokedEdges, Held: onRecord(tunnel.Namespace, tunnel.Status), Egress: true,
	}, true
}

// egressID returns the id with which apiservers of a Cluster use its networks; empty: none is granted.
func egressID(tunnel *v1alpha1.Tunnel, cluster *clusterv1.Cluster) string {
	if tunnel == nil || tunnel.Spec.EgressOf != cluster.Name || !metav1.IsControlledBy(tunnel, cluster) ||
		!ServedFor(tunnel, cluster.UID) {
		return ""
	}
	return tunnel.HeldID()
}

// Forward is how gateways reach the apiservers of a Cluster for the machines of its networks. At most one of Addresses
// and TunnelID is set; if neither is, Problem is the reason with its remedy.
type Forward struct {
	Addresses []model.Endpoint
	TunnelID  string
	Problem   string
}

// ForwardTo returns how gateways reach the apiservers of a Cluster: through the Tunnel of the Cluster if that leads
// through gateways, otherwise at the endpoint of the Cluster, if the installation allows its address. A user of a
// namespace writes the endpoint, so without that setting it is not dialled, and gateways never dial each other for it:
// their inside listeners lead to the apiservers of all Clusters.
func ForwardTo(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, s NetworkSettings) Forward {
	if tunnel != nil && tunnel.OfCluster() && tunnel.Spec.Kubeconfig.Mode.Tunnelled() &&
		metav1.IsControlledBy(tunnel, cluster) {
		if id := tunnel.HeldID(); id != "" && ServedFor(tunnel, cluster.UID) {
			return Forward{TunnelID: id}
		}
		return Forward{Problem: fmt.Sprintf("the Tunnel %s is not served: see its conditions", tunnel.Name)}
	}
	endpoint := cluster.Spec.ControlPlaneEndpoint
	if !endpoint.IsValid() {
		return Forward{Problem: "the Cluster has no endpoint yet"}
	}
	address, err := netip.ParseAddr(endpoint.Host)
	if err != nil {
		return Forward{Problem: fmt.Sprintf(
			"the endpoint %s of the Cluster is a name, which gateways do not dial: give the Cluster a tunnel", endpoint.Host,
		)}
	}
	address = address.Unmap().WithZone("")
	switch {
	case model.IsNeverDialled(address):
		return Forward{Problem: fmt.Sprintf(
			"the endpoint %s of the Cluster is an address that gateways never dial: give the Cluster a tunnel", endpoint.Host,
		)}
	case slices.ContainsFunc(s.Gateways, func(a netip.Addr) bool { return a.Unmap() == address }):
		return Forward{Problem: fmt.Sprintf(
			"the endpoint %s of the Cluster is an address of the gateways, which they do not dial for a network: give the "+
				"Cluster a tunnel", endpoint.Host,
		)}
	case !slices.ContainsFunc(s.APIServers, func(p netip.Prefix) bool { return p.Contains(address) }):
		return Forward{Problem: fmt.Sprintf(
			"gateways may not dial the endpoint %s of the Cluster: add it to --apiserver-cidrs of the controller, or give the "+
				"Cluster a tunnel", endpoint.Host,
		)}
	}
	return Forward{Addresses: []model.Endpoint{{Host: address.String(), Port: uint16(endpoint.Port)}}}
}

// CIDRClaim returns the form of a CIDR of a network in Names. Networks of different Clusters never claim the same.
func CIDRClaim(cluster model.Key, cidr netip.Prefix) string {
	return claimOf(cluster, "cidr", cidr.String())
}

// SuffixClaim returns the form of a DNS suffix of a network in Names.
func SuffixClaim(cluster model.Key, suffix string) string { return claimOf(cluster, "suffix", suffix) }

// claimOf returns a claim that is no DNS name, because it contains a slash.
func claimOf(cluster model.Key, kind, value string) string {
	return cluster.String() + "/" + kind + "/" + value
}

// recordedClaims returns the claims of a network that are on record in its Tunnel.
func recordedClaims(namespace string, status v1alpha1.TunnelStatus) (all []string) {
	served := status.Served
	if served == nil || served.Network == nil {
		return nil
	}
	cluster := model.Key{Namespace: namespace, Name: served.Network.ClusterName}
	for _, cidr := range served.Network.CIDRs {
		all = append(all, claimOf(cluster, "cidr", cidr))
	}
	for _, suffix := range served.Network.DNSSuffixes {
		all = append(all, SuffixClaim(cluster, suffix))
	}
	return all
}

// NetworkTunnel returns the name of the Tunnel of a RemoteNetwork.
func NetworkTunnel(network string) string { return network + v1alpha1.NetworkTunnelSuffix }

// EgressTunnel returns the name of the Tunnel of a Cluster's apiservers.
func EgressTunnel(cluster string) string { return cluster + v1alpha1.EgressTunnelSuffix }

// ClustersOf returns the names of the Clusters that a Tunnel of this name may be for: the one with this name, and the
// one to whose apiservers it leads. The name of a Cluster may end like that of an EgressTunnel.
func ClustersOf(tunnel string) []string {
	if cluster, ok := strings.CutSuffix(tunnel, v1alpha1.EgressTunnelSuffix); ok && cluster != "" {
		return []string{tunnel, cluster}
	}
	return []string{tunnel}
}

// resolveNetwork completes the resolution of a Tunnel that leads to no apiserver: of a network, or of apiservers.
func (n *Names) resolveNetwork(d model.TunnelDomain, c Candidate, r Resolution) Resolution {
	if err := model.ValidateID(c.ID); err != nil {
		r.Fatal = &model.FieldError{
			Field: "spec.id", Value: c.ID, Problem: err.Error(), Cure: "leave it empty and let the controller choose it",
		}
		return n.withhold(d, c, r)
	}
	if c.Network != nil && c.Network.Excess {
		r.Fatal = &model.FieldError{
			Field: "spec.clusterName", Value: c.Network.Cluster.Name, Kind: model.TooMany,
			Problem: fmt.Sprintf("the Cluster has %d older RemoteNetworks, and no more than these are served", MaxNetworks),
			Cure:    "delete those that are not needed, or give their CIDRs to one whose edges reach them too",
		}
		return n.withhold(d, c, r)
	}
	var parts networkParts
	if c.Network != nil {
		parts = readNetwork(d, *c.Network)
	}
	id := d.TunnelID(c.ID)
	owner, affected := n.claim(claimant{
		key: c.Key, created: c.Created, base: []string{id}, extra: parts.claims(), held: held(d, c),
	})
	r.HoldsID, r.Affected = owner[id] == c.Key, affected
	if !r.HoldsID {
		r.Fatal = taken("spec.id", c.ID, "", owner[id], "delete this Tunnel and let the controller choose another id")
		r.Cluster = withheld(r.Cluster)
		return r
	}
	if c.Egress {
		r.Cluster.Egress = true
		return r
	}
	var refused []*model.FieldError
	r.Cluster.Network, refused = parts.grant(c, owner)
	r.Refused = append(r.Refused, refused...)
	return r
}

// part is one valid part of a network.
type part struct {
	field  string
	value  string
	claim  string
	cidr   netip.Prefix
	target model.Target
}

// networkParts are the parts of a network by kind, in the order of the spec.
type networkParts struct {
	cidrs, suffixes, targets []part
	ports                    []model.PortRange
	refused                  []*model.FieldError
	// noPort is true if the spec has ports and none is valid: no CIDR and no suffix is granted then.
	noPort bool
}

func (p *networkParts) all() []part { return slices.Concat(p.cidrs, p.suffixes, p.targets) }

// claims returns the claims of all parts. Each occurs once.
func (p *networkParts) claims() (all []string) {
	for _, one := range p.all() {
		all = append(all, one.claim)
	}
	return all
}

// refuse records why a part is not granted.
func (p *networkParts) refuse(field, value, problem, cure string) {
	p.refuseAs(model.Invalid, field, value, problem, cure)
}

func (p *networkParts) refuseAs(kind model.FieldErrorKind, field, value, problem, cure string) {
	p.refused = append(p.refused, &model.FieldError{
		Field: field, Value: value, Problem: problem, Cure: cure, Kind: kind,
	})
}

// grant returns the network with the parts that the candidate owns.
func (p *networkParts) grant(c Candidate, owner map[string]model.Key) (*model.Network, []*model.FieldError) {
	f := *c.Network
	w := &model.Network{
		Name: f.Name, Cluster: f.Cluster, EgressID: f.EgressID, Ports: p.ports, APIServers: f.APIServers,
		APIServerID: f.APIServerID,
	}
	refused := p.refused
	owned := func(one part) bool {
		holder := owner[one.claim]
		if holder == c.Key {
			return true
		}
		other := strings.TrimSuffix(holder.Name, v1alpha1.NetworkTunnelSuffix)
		refused = append(refused, &model.FieldError{
			Field: one.field, Value: one.value, Kind: model.Taken,
			Problem: fmt.Sprintf("the network %s of the Cluster %s has it too, and keeps it", other, f.Cluster.Name),
			Cure:    fmt.Sprintf("remove it from %s or from %s", other, f.Name),
		})
		return false
	}
	for _, one := range p.cidrs {
		if owned(one) && !p.noPort {
			w.CIDRs = append(w.CIDRs, one.cidr)
		}
	}
	for _, one := range p.suffixes {
		switch {
		case !owned(one) || p.noPort:
		case len(w.CIDRs) == 0:
			refused = append(refused, noAddress(one.field, one.value))
		default:
			w.Suffixes = append(w.Suffixes, one.value)
		}
	}
	for _, one := range p.targets {
		if owned(one) {
			w.Targets = append(w.Targets, one.target)
		}
	}
	return w, refused
}

// readNetwork validates every part of a network that can be validated without the claims of others.
func readNetwork(d model.TunnelDomain, f NetworkFacts) (p networkParts) {
	p.readCIDRs(f)
	seen := map[string]bool{}
	for i, suffix := range f.Suffixes {
		field := fmt.Sprintf("spec.dnsSuffixes[%d]", i)
		switch err := d.ValidateSuffix(suffix); {
		case err != nil:
			p.refuse(field, suffix, err.Error(), "give a lower-case DNS domain of the network, or remove it")
		case seen[suffix]:
			p.refuse(field, suffix, "it is there twice", "remove one of them")
		case len(p.cidrs) == 0: // another network of the Cluster may have the suffix
			p.refused = append(p.refused, noAddress(field, suffix))
		default:
			seen[suffix] = true
			p.suffixes = append(p.suffixes, part{field: field, value: suffix, claim: SuffixClaim(f.Cluster, suffix)})
		}
	}
	for i, port := range f.Ports {
		allowed, ok := PortRange(port)
		if !ok {
			p.refuse(
				fmt.Sprintf("spec.ports[%d]", i), fmt.Sprintf("%d-%d", port.Port, cmp.Or(port.EndPort, port.Port)),
				"it is no range of TCP ports", "give a port from 1 to 65535, and an endPort that is not less",
			)
			continue
		}
		p.ports = append(p.ports, allowed)
	}
	p.noPort = len(f.Ports) > 0 && len(p.ports) == 0
	p.readTargets(d, f)
	return p
}

// noAddress returns why a DNS suffix is not granted to a network without CIDRs: edges dial a name only at addresses in
// these.
func noAddress(field, suffix string) *model.FieldError {
	return &model.FieldError{
		Field: field, Value: suffix, Problem: "no address of it can be dialled",
		Cure: "add spec.cidrs with the addresses of its names, or remove it",
	}
}

// readCIDRs validates the CIDRs of a network.
func (p *networkParts) readCIDRs(f NetworkFacts) {
	seen := map[netip.Prefix]bool{}
	for i, text := range f.CIDRs {
		field := fmt.Sprintf("spec.cidrs[%d]", i)
		cidr, err := model.ValidateCIDR(text)
		switch {
		case err != nil:
			p.refuse(field, text, err.Error(), "give a CIDR such as 10.1.0.0/16")
		case seen[cidr]:
			p.refuse(field, text, "it is there twice", "remove one of them")
		case len(model.Without([]netip.Prefix{cidr}, model.NeverDialled())) == 0:
			p.refuseAs(model.NeverDial, field, text, neverProblem, "remove it")
		default:
			seen[cidr] = true
			if gateway, has := gatewayIn(cidr, f.Gateways); has {
				p.refuseAs(
					model.HasGateway, field, text,
					fmt.Sprintf("it contains the gateway %s, which edges dial outside of the network", gateway),
					"give smaller CIDRs, without the gateway",
				)
				continue
			}
			if problem, cure := overlap(cidr, f); problem != "" {
				p.refuseAs(model.Overlap, field, text, problem, cure)
				continue
			}
			p.cidrs = append(p.cidrs, part{field: field, value: text, claim: CIDRClaim(f.Cluster, cidr), cidr: cidr})
		}
	}
}

// gatewayIn returns the first address of a gateway that a CIDR contains.
func gatewayIn(cidr netip.Prefix, gateways []netip.Addr) (gateway netip.Addr, has bool) {
	i := slices.IndexFunc(gateways, func(a netip.Addr) bool { return cidr.Contains(a.Unmap()) })
	if i < 0 {
		return netip.Addr{}, false
	}
	return gateways[i], true
}

// overlap returns why a part of the Cluster's Pods or Services would lead into a valid CIDR by accident, and the
// remedy; empty: none would.
func overlap(cidr netip.Prefix, f NetworkFacts) (problem, cure string) {
	listed := slices.Concat(f.CIDRs, f.Siblings)
	for _, kind := range []struct {
		name  string
		cidrs []string
	}{{"Pod", f.Pods}, {"Service", f.Services}} {
		for _, text := range kind.cidrs {
			own, err := netip.ParsePrefix(text)
			if err != nil || !own.Overlaps(cidr) || own.Masked() == cidr {
				continue
			}
			own = own.Masked()
			if own.Bits() < cidr.Bits() {
				return fmt.Sprintf("it is a part of the %s CIDR %s of the Cluster", kind.name, own), fmt.Sprintf(
					"give %s if the edges run where all %ss are routed, otherwise remove it", own, kind.name,
				)
			}
			if !ListsCIDR(listed, own) {
				return fmt.Sprintf("it contains the %s CIDR %s of the Cluster", kind.name, own), fmt.Sprintf(
					"give smaller CIDRs, or list %s too, in the network whose edges run where all %ss are routed", own, kind.name,
				)
			}
		}
	}
	return "", ""
}

// ListsCIDR reports whether a CIDR is in a list of texts. Invalid texts are no CIDRs.
func ListsCIDR(all []string, cidr netip.Prefix) bool {
	return slices.ContainsFunc(all, func(text string) bool {
		one, err := model.ValidateCIDR(text)
		return err == nil && one == cidr
	})
}

// readTargets validates the targets of a network.
func (p *networkParts) readTargets(d model.TunnelDomain, f NetworkFacts) {
	seen := map[string]bool{}
	for i, t := range f.Targets {
		field := fmt.Sprintf("spec.targets[%d]", i)
		address := TargetAddress(t)
		name, err := d.TargetName(t.Name, f.Name, f.Cluster)
		switch {
		case err != nil:
			p.refuse(field+".name", t.Name, err.Error(), "give the target, the network or the Cluster a shorter name")
		case seen[name]:
			p.refuse(field+".name", t.Name, "it is there twice", "rename one of them")
		case t.Port < 0 || t.Port > 65535 || address.Validate() != nil:
			p.refuse(field+".address", t.Address, "it is no address", "give an IP address or a DNS name, and a port")
		case neverDialled(address.Host):
			p.refuseAs(model.NeverDial, field+".address", t.Address, neverProblem, "remove it")
		case slices.ContainsFunc(f.Gateways, func(a netip.Addr) bool { return isAddress(address.Host, a) }):
			p.refuseAs(
				model.HasGateway, field+".address", t.Address,
				"it is the address of a gateway, which edges dial outside of the network", "remove it",
			)
		default:
			seen[name] = true
			p.targets = append(p.targets, part{
				field: field + ".name", value: t.Name, claim: name, target: model.Target{Name: name, Address: address},
			})
		}
	}
}

// PortRange returns the ports that an entry allows; false: it is no range of TCP ports.
func PortRange(p v1alpha1.NetworkPort) (allowed model.PortRange, ok bool) {
	last := cmp.Or(p.EndPort, p.Port)
	if p.Port < 1 || last < p.Port || last > 65535 {
		return model.PortRange{}, false
	}
	return model.PortRange{First: uint16(p.Port), Last: uint16(last)}, true
}

// TargetAddress returns the address of a target, which may be invalid.
func TargetAddress(t v1alpha1.NetworkTarget) model.Endpoint {
	return model.Endpoint{Host: canonical(t.Address), Port: uint16(cmp.Or(t.Port, defaultTargetPort))}
}

// neverDialled reports whether a host is an address that no edge dials, or a name of the edge's own machine.
func neverDialled(host string) bool {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host == "localhost" || strings.HasSuffix(host, ".localhost")
	}
	return model.IsNeverDialled(address)
}

// isAddress reports whether a host is an address, in any spelling.
func isAddress(host string, address netip.Addr) bool {
	parsed, err := netip.ParseAddr(host)
	return err == nil && parsed.Unmap() == address.Unmap()
}

// recordNetwork returns the record of what is granted to a network.
func recordNetwork(n model.Network) *v1alpha1.ServedNetwork {
	s := &v1alpha1.ServedNetwork{
		ClusterName: n.Cluster.Name, EgressID: n.EgressID, DNSSuffixes: n.Suffixes, APIServerTunnelID: n.APIServerID,
	}
	for _, cidr := range n.CIDRs {
		s.CIDRs = append(s.CIDRs, cidr.String())
	}
	for _, port := range n.Ports {
		s.Ports = append(s.Ports, v1alpha1.NetworkPort{Port: int32(port.First), EndPort: int32(port.Last)})
	}
	for _, t := range n.Targets {
		s.Targets = append(s.Targets, v1alpha1.ServedTarget{Name: t.Name, Address: t.Address.String()})
	}
	for _, address := range n.APIServers {
		s.APIServers = append(s.APIServers, address.String())
	}
	return s
}

// narrowed returns how often a network has lost a part of its CIDRs or ports, by its record and the next decision.
func narrowed(before v1alpha1.ServedNetwork, now model.Network) int64 {
	var cidrs []netip.Prefix
	for _, text := range before.CIDRs {
		if cidr, err := model.ValidateCIDR(text); err == nil {
			cidrs = append(cidrs, cidr)
		}
	}
	had := model.Network{}
	for _, port := range before.Ports {
		if one, ok := PortRange(port); ok {
			had.Ports = append(had.Ports, one)
		}
	}
	lost := func(p model.PortRange) bool {
		return !slices.ContainsFunc(now.AllowedPorts(), func(q model.PortRange) bool {
			return q.First <= p.First && p.Last <= q.Last
		})
	}
	if len(model.Without(cidrs, now.CIDRs)) > 0 || slices.ContainsFunc(had.AllowedPorts(), lost) {
		return before.Narrowed + 1
	}
	return before.Narrowed
}
