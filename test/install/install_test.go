package install

import (
	"testing"
)

// TestInstallation runs in the order of a user: the first minute, edges in all forms, disturbances under requests, and
// the removal. Every part needs the ones before it.
func TestInstallation(t *testing.T) {
	w := newWorld(t, workloadNodes(testing.Short()))
	for _, check := range []struct {
		promise string
		when    when
		prove   func(*testing.T, *World)
	}{
		{"the chart rejects a missing value, and a cluster without Cluster API, in one line", first, proveRejections},
		{"the first minute: one command installs, one gives the first edge, and kubectl works", first, proveFirstMinute},
		{"helm test passes, and a second install changes nothing", always, proveHelmTest},
		{"nodes have no images but the listed ones", always, proveImages},
		{"all Pods but the gateways meet Pod Security's level restricted", always, provePodSecurity},
		{"only the agent of a gateway has a capability, and Envoy beside it has none", always, proveCapabilities},
		{"edges run as a static Pod of a kubelet, and with the commands of systemd's units", long, proveForms},
		{"a drain of one node loses few requests", always, proveOneDrain},
		{"the management cluster cannot dial the workload cluster", always, proveUndialable},
		{"Cluster API connects to the workload cluster through the tunnel", always, proveClusterAPI},
		{"drains of all other nodes lose few requests", long, proveDrains},
		{"all edges that are away for longer than their token is valid come back without help", long, proveAbsence},
		{"an eviction of each Pod loses few requests", long, proveEvictions},
		{"the deletion of each Pod loses few requests", long, proveDeletions},
		{"more and fewer gateways lose few requests", long, proveScaling},
		{"connected edges learn a new public address", long, proveNewAddress},
		{"Pods that exceed their memory limits come back", long, proveMemory},
		{"a restart of containerd on every node loses no request", long, proveContainerd},
		{"a rotation of the CA, which began before the evictions, ends and loses no further request", long, proveRotation},
		{"edges that start after it with the bootstrap Secret from before it enrol", long, proveOldSecret},
		{"other images replace all gateways, then all edges in Pods, and few requests are lost", long, proveOtherImages},
		{"nothing is left after the commands for removal", always, proveRemoval},
	} {
		if check.when == long && testing.Short() {
			continue
		}
		if !that(t, check.promise, func(t *testing.T) { check.prove(t, w) }) && check.when == first {
			t.FailNow()
		}
	}
}

// when states when a check runs.
type when int

const (
	always when = iota
	first       // everything after it needs its result
	long        // not in the short form
)

// workloadNodes is how many nodes the workload cluster has.
func workloadNodes(short bool) int {
	if short {
		return 1
	}
	return 2
}
