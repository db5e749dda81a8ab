package boot

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func TestFindMachine(t *testing.T) {
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	machine := func(name string, change func(*clusterv1.Machine)) *clusterv1.Machine {
		m := kubetest.Machine("prod", "c1", name)
		m.CreationTimestamp = metav1.NewTime(made)
		m.Spec.InfrastructureRef.Name = "infra-" + name
		change(m)
		return m
	}
	address := func(kind clusterv1.MachineAddressType, value string) func(*clusterv1.Machine) {
		return func(m *clusterv1.Machine) {
			m.Status.Addresses = append(m.Status.Addresses, clusterv1.MachineAddress{Type: kind, Address: value})
		}
	}
	nothing := func(*clusterv1.Machine) {}
	tests := map[string]struct {
		machines   []*clusterv1.Machine
		said       *reportv1.Machine
		early      bool
		want       string
		candidates int
	}{
		"by its name": {
			machines:   []*clusterv1.Machine{machine("a", nothing), machine("b", nothing)},
			said:       &reportv1.Machine{Hostname: "B"},
			want:       "b",
			candidates: 1,
		},
		"by its name in a domain": {
			machines: []*clusterv1.Machine{
				machine("a", nothing),
				machine("b", nothing),
			}, said: &reportv1.Machine{Hostname: "b.example.com"}, want: "b", candidates: 1,
		},
		"by the name of its infrastructure": {
			machines:   []*clusterv1.Machine{machine("a", nothing)},
			said:       &reportv1.Machine{Hostname: "infra-a"},
			want:       "a",
			candidates: 1,
		},
		"by its Node": {
			machines: []*clusterv1.Machine{
				machine("a", func(m *clusterv1.Machine) { m.Status.NodeRef.Name = "node-1" }),
			}, said: &reportv1.Machine{Hostname: "node-1"}, want: "a", candidates: 1,
		},
		"by its provider id, though another has its name": {
			machines: []*clusterv1.Machine{
				machine("a", nothing),
				machine("b", func(m *clusterv1.Machine) { m.Spec.ProviderID = "x://1" }),
			},
			said: &reportv1.Machine{Hostname: "a", ProviderId: "x://1"}, want: "b", candidates: 1,
		},
		"by its system UUID, in any case": {
			machines: []*clusterv1.Machine{
				machine("a", func(m *clusterv1.Machine) { m.Status.NodeInfo = &corev1.NodeSystemInfo{SystemUUID: "ABC"} }),
			},
			said: &reportv1.Machine{Hostname: "h", SystemUuid: "abc"}, want: "a", candidates: 1,
		},
		"by the name in its bootstrap data": {
			machines:   []*clusterv1.Machine{machine("a", nothing), machine("b", nothing)},
			said:       &reportv1.Machine{Hostname: "a", Name: "b"},
			want:       "b",
			candidates: 1,
		},
		"by an internal address": {
			machines: []*clusterv1.Machine{
				machine("a", address(clusterv1.MachineInternalIP, "10.0.0.1")),
				machine("b", address(clusterv1.MachineInternalIP, "10.0.0.2")),
			},
			said: &reportv1.Machine{Hostname: "h", Addresses: []string{"172.17.0.1", "10.0.0.2"}}, want: "b", candidates: 1,
		},
		"by a DNS name": {
			machines:   []*clusterv1.Machine{machine("a", address(clusterv1.MachineInternalDNS, "ip-10-0-0-1.internal"))},
			said:       &reportv1.Machine{Hostname: "ip-10-0-0-1.internal"},
			want:       "a",
			candidates: 1,
		},
		"two share an address, and one has the name as well": {
			machines: []*clusterv1.Machine{
				machine("a", address(clusterv1.MachineExternalIP, "192.0.2.1")),
				machine("b", func(m *clusterv1.Machine) {
					address(clusterv1.MachineExternalIP, "192.0.2.1")(m)
					address(clusterv1.MachineHostName, "h")(m)
				}),
			},
			said: &reportv1.Machine{Hostname: "h", Addresses: []string{"192.0.2.1"}}, want: "b", candidates: 1,
		},
		"two share an address": {
			machines: []*clusterv1.Machine{
				machine("a", address(clusterv1.MachineExternalIP, "192.0.2.1")),
				machine("b", address(clusterv1.MachineExternalIP, "192.0.2.1")),
			},
			said: &reportv1.Machine{Hostname: "h", Addresses: []string{"192.0.2.1"}}, candidates: 2,
		},
		"no machine": {
			machines: []*clusterv1.Machine{machine("a", nothing)},
			said:     &reportv1.Machine{Hostname: "localhost", Addresses: []string{"10.0.0.1"}},
		},
		"nothing is reported, and nothing is recorded": {
			machines: []*clusterv1.Machine{machine("a", func(m *clusterv1.Machine) {
				m.Spec.InfrastructureRef.Name = ""
				m.Status.NodeInfo = &corev1.NodeSystemInfo{}
			})}, said: &reportv1.Machine{},
		},
		"it was made after the report": {
			machines: []*clusterv1.Machine{machine("a", nothing)},
			said:     &reportv1.Machine{Hostname: "a"},
			early:    true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := report.Boot{Received: made.Add(time.Minute), Report: &reportv1.BootReport{Machine: tc.said}}
			if tc.early {
				b.Received = made.Add(-time.Minute)
			}
			got, candidates := findMachine(tc.machines, b)
			if name := machineName(got); name != tc.want || candidates != tc.candidates {
				t.Errorf("got %q of %d", name, candidates)
			}
		})
	}
}

func machineName(m *clusterv1.Machine) string {
	if m == nil {
		return ""
	}
	return m.Name
}
