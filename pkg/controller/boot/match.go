package boot

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// These are the ways to identify the Machine of a report, the most reliable first. A report is matched only against
// Machines of the workload cluster that its token belongs to.
var bootTies = []func(*clusterv1.Machine, *reportv1.Machine) bool{
	func(m *clusterv1.Machine, r *reportv1.Machine) bool {
		return r.GetName() != "" && r.GetName() == m.Name
	},
	func(m *clusterv1.Machine, r *reportv1.Machine) bool {
		return r.GetProviderId() != "" && r.GetProviderId() == m.Spec.ProviderID
	},
	func(m *clusterv1.Machine, r *reportv1.Machine) bool {
		info := m.Status.NodeInfo
		return info != nil && (sameFold(r.GetSystemUuid(), info.SystemUUID) || sameFold(r.GetMachineId(), info.MachineID))
	},
	func(m *clusterv1.Machine, r *reportv1.Machine) bool {
		return sameFold(r.GetHostname(), m.Status.NodeRef.Name)
	},
	// Most infrastructure providers name a machine after its own object, others after the Machine.
	func(m *clusterv1.Machine, r *reportv1.Machine) bool {
		return sameHost(r.GetHostname(), m.Spec.InfrastructureRef.Name) || sameHost(r.GetHostname(), m.Name)
	},
	func(m *clusterv1.Machine, r *reportv1.Machine) bool { return hasAddress(m, r, isName) },
	func(m *clusterv1.Machine, r *reportv1.Machine) bool { return hasAddress(m, r, isInternal) },
	func(m *clusterv1.Machine, r *reportv1.Machine) bool { return hasAddress(m, r, isExternal) },
}

func sameFold(a, b string) bool { return a != "" && strings.EqualFold(a, b) }

// sameHost compares a hostname, which may be fully qualified, with a name.
func sameHost(host, name string) bool {
	short, _, _ := strings.Cut(host, ".")
	return sameFold(host, name) || sameFold(short, name)
}

func isName(t clusterv1.MachineAddressType) bool {
	return t == clusterv1.MachineHostName || t == clusterv1.MachineInternalDNS || t == clusterv1.MachineExternalDNS
}
func isInternal(t clusterv1.MachineAddressType) bool { return t == clusterv1.MachineInternalIP }
func isExternal(t clusterv1.MachineAddressType) bool { return t == clusterv1.MachineExternalIP }

func hasAddress(m *clusterv1.Machine, r *reportv1.Machine, kind func(clusterv1.MachineAddressType) bool) bool {
	for _, a := range m.Status.Addresses {
		if kind(a.Type) &&
			(isName(a.Type) && sameFold(r.GetHostname(), a.Address) || slices.Contains(r.GetAddresses(), a.Address)) {
			return true
		}
	}
	return false
}

// findMachine returns the one Machine that matches a report. Otherwise it returns nil and the number of candidates.
// Each matcher narrows the candidates of the previous one. A Machine that was created after the report arrived is never
// a candidate: it only reuses the name or address.
func findMachine(machines []*clusterv1.Machine, b report.Boot) (*clusterv1.Machine, int) {
	left := slices.DeleteFunc(
		slices.Clone(machines), func(m *clusterv1.Machine) bool { return b.Received.Before(m.CreationTimestamp.Time) },
	)
	found := 0
	for _, tie := range bootTies {
		tied := slices.DeleteFunc(
			slices.Clone(left), func(m *clusterv1.Machine) bool { return !tie(m, b.Report.GetMachine()) },
		)
		switch len(tied) {
		case 0:
		case 1:
			return tied[0], 1
		default:
			left, found = tied, len(tied)
		}
	}
	return nil, found
}

// match is the Machine that a boot was matched to.
type match struct {
	bootID string
	uid    types.UID
}

// assign gives each Machine its newest report. It returns the reports that match no Machine or more than one. A boot
// stays assigned to its Machine: when that Machine is gone, the report is unmatched, even if its name or address now
// belongs to another Machine. The assignment is stored by host for the next call.
func assign(
	machines []*clusterv1.Machine, boots []report.Boot, before map[string]match,
) (byMachine map[string]report.Boot, left []unmatched, now map[string]match) {
	byMachine, now = map[string]report.Boot{}, map[string]match{}
	byUID := map[types.UID]*clusterv1.Machine{}
	for _, m := range machines {
		byUID[m.UID] = m
	}
	for _, b := range boots {
		bootID := b.Report.GetBootId()
		known, ok := before[b.Host]
		ok = ok && bootID != "" && known.bootID == bootID
		m, candidates := byUID[known.uid], 1
		if !ok {
			m, candidates = findMachine(machines, b)
		} else if now[b.Host] = known; m == nil {
			continue // its Machine was deleted
		}
		if m == nil {
			left = append(left, unmatched{b, candidates})
			continue
		}
		now[b.Host] = match{bootID, m.UID}
		if before, ok := byMachine[m.Name]; !ok || b.Received.After(before.Received) {
			byMachine[m.Name] = b
		}
	}
	return byMachine, left, now
}

// unmatched is a report that matches no Machine or more than one.
type unmatched struct {
	boot       report.Boot
	candidates int // if more than one Machine matches
}

// Slim returns the part of a Machine that the cache keeps: the fields used for matching, and the conditions.
func Slim(m *clusterv1.Machine) {
	spec, status := m.Spec, m.Status
	m.OwnerReferences = nil
	m.Spec = clusterv1.MachineSpec{
		ClusterName:       spec.ClusterName,
		InfrastructureRef: spec.InfrastructureRef,
		ProviderID:        spec.ProviderID,
	}
	m.Status = clusterv1.MachineStatus{NodeRef: status.NodeRef, Addresses: status.Addresses}
	m.Status.Initialization.InfrastructureProvisioned = status.Initialization.InfrastructureProvisioned
	if status.NodeInfo != nil {
		m.Status.NodeInfo = &corev1.NodeSystemInfo{
			SystemUUID: status.NodeInfo.SystemUUID,
			MachineID:  status.NodeInfo.MachineID,
		}
	}
	for _, c := range status.Conditions {
		if c.Type == machineCondition || c.Type == clusterv1.MachineInfrastructureReadyCondition {
			m.Status.Conditions = append(m.Status.Conditions, c)
		}
	}
}
