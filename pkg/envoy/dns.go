package envoy

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// byDNS finds the hosts of an Envoy cluster by name, of either family: every address is a host of its own, or together they are the one
// host, of which any that answers is used. A name that is not there yet is looked up again soon: a gateway that is new has one only
// when it runs.
func byDNS(together bool) *clusterv3.Cluster_ClusterType {
	return &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.cluster.dns",
		TypedConfig: pack(&dnsv3.DnsCluster{
			DnsLookupFamily:              commondnsv3.DnsLookupFamily_ALL,
			AllAddressesInSingleEndpoint: together,
			DnsFailureRefreshRate: &dnsv3.DnsCluster_RefreshRate{
				BaseInterval: durationpb.New(dnsRetryBase),
				MaxInterval:  durationpb.New(dnsRetryMax),
			},
		}),
	}}
}
