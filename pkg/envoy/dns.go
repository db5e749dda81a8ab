package envoy

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// byDNS resolves the hosts of an Envoy cluster by name, of either family. Each address is a separate host; or, if
// together is true, all are one host, and any address that answers is used. A name that does not resolve is
// retried soon: a new gateway's name resolves only once it runs.
func byDNS(together bool) *clusterv3.Cluster_ClusterType {
	return &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.cluster.dns",
		TypedConfig: typed.Pack(&dnsv3.DnsCluster{
			DnsLookupFamily:              commondnsv3.DnsLookupFamily_ALL,
			AllAddressesInSingleEndpoint: together,
			DnsFailureRefreshRate: &dnsv3.DnsCluster_RefreshRate{
				BaseInterval: durationpb.New(dnsRetryBase),
				MaxInterval:  durationpb.New(dnsRetryMax),
			},
		}),
	}}
}
