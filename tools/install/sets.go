package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// lab holds the parts of test/lab: a management cluster with Cluster API, a gateway, edges and workload apiservers.
var lab = []string{"envoy", "kube-apiserver", "etcd", "kubectl", "fake-kubelet", "capi-core"}

// cluster holds the parts of test/lab/cluster: real Kubernetes clusters with nodes.
var cluster = []string{
	"kube-apiserver", "etcd", "kubectl", "kube-controller-manager", "coredns",
	"kubelet", "kube-scheduler", "kube-proxy", "containerd", "cni", "pause", "runc", "nft",
}

// sets name the parts that one topic needs. The Makefile installs the set of a target before it runs it.
var sets = map[string][]string{
	"demo": lab,
	"lab":  lab,
	// for tests with a kube-apiserver, whose types include Cluster API's
	"apiserver": {"kube-apiserver", "etcd", "kubectl", "capi-core", "grpcurl"},
	"managed": {
		"kube-apiserver", "etcd", "kubectl", "capi-core", "envoy", "fake-kubelet", "coredns", "externaldns-crd",
		"capa-reconcile",
		"prometheus", "helm", "registry",
	},
	"networks": slices.Concat(lab, []string{"capa-reconcile", "named-targets", "clusterctl"}),
	"chart":    {"kube-apiserver", "etcd", "kubectl", "capi-core", "helm", "registry"},
	// a lab where Cluster API creates the workload clusters with kubeadm
	"machines": slices.Concat(lab, []string{
		"kubeadm", "machine", "kube-controller-manager", "kubernetes-next", "capi-bootstrap", "capi-control-plane",
		"clusterctl",
	}),
	// the programs of Kubernetes on such machines, to install them in another version
	"machine-programs": {"kube-apiserver", "kube-controller-manager", "kubeadm", "kubernetes-next"},
	"cluster":          cluster,
	// an installation in such a cluster
	"install": slices.Concat(cluster, []string{"capi-core", "envoy", "helm"}),
	// nodes of a cluster whose control plane is in a lab
	"sites": slices.Concat(lab, cluster, []string{"kubeadm", "capi-bootstrap"}),
	// Kamaji, and the programs of its control planes and of their nodes, to install them in the version that it accepts
	"kamaji": {
		"kamaji", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubeadm",
		"kube-proxy",
	},
	"operations": slices.Concat(lab, []string{"kube-controller-manager", "clusterctl"}),
	"robustness": slices.Concat(lab, []string{"kube-controller-manager", "clusterctl"}),
	"metrics":    slices.Concat(lab, []string{"prometheus"}),
	"page":       {"kube-apiserver", "etcd", "capi-core", chromiumPart},
	"sight":      slices.Concat(lab, []string{chromiumPart}),
}

// expand replaces the names of sets by the names of their parts.
func expand(names []string) []string {
	var all []string
	for _, name := range names {
		if set, ok := sets[name]; ok {
			all = append(all, set...)
		} else {
			all = append(all, name)
		}
	}
	return all
}

// choose returns the requested parts in the order of all, given names of sets and parts. No name stands for all parts
// that are not installed by name alone.
func choose(all []part, names []string) ([]part, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(all), func(p part) bool { return p.named }), nil
	}
	names = expand(names)
	var known []string
	for _, p := range all {
		known = append(known, p.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown part %q: want a set (%s) or a part (%s)", name,
				strings.Join(slices.Sorted(maps.Keys(sets)), ", "), strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(p part) bool { return !slices.Contains(names, p.name) }), nil
}
