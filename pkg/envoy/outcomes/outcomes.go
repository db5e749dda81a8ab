// Package outcomes lets the Envoy of a gateway count how the connections of clients end, and reads what it has counted.
// Its input is a listener, its output that listener with counters; then Envoy's counters are the input, and numbers by
// route and outcome the output. It does not know where a listener comes from.
package outcomes

import (
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// Outcome is how a client's connection to a gateway ended, as far as the gateway can be the reason.
type Outcome string

const (
	// Reached is a connection that was carried to an edge. What the edge and the apiserver answered is not considered.
	Reached Outcome = "reached"
	// Failed is a connection that no reverse tunnel has carried, after all attempts of the gateway.
	Failed Outcome = "failed"
	// Broken is a connection that its reverse tunnel carried and that ended with it. Envoy 1.40 reports that only of
	// clients that came by CONNECT and share the reverse tunnel with others.
	Broken Outcome = "broken"
)

// The routes of clients.
const (
	RouteSNI     = "sni"
	RouteConnect = "connect"
)

const (
	// Form identifies the form of Count's result. It changes whenever that changes, so that an agent that takes over a
	// running Envoy replaces the listener.
	Form = "counted-1"
	// Stats matches the counters of Count, by Envoy's names.
	Stats = `^` + outcomePrefix + `(` + RouteSNI + `|` + RouteConnect + `)\..*`
	// outcomePrefix and a route are the scope of a counter.
	outcomePrefix = "clients_"
	// endedCounter counts connections by Envoy's flags, except what answeredCounter counts: connections that an edge has
	// rejected, because it cannot reach the apiserver.
	endedCounter, answeredCounter = "ended", "answered"
	flagsLabel                    = "flags"
	// edgeAnswered matches a connection that answeredCounter counts. Envoy gives it the flags of a failure.
	edgeAnswered = `(has(upstream.transport_failure_reason) && ` +
		`upstream.transport_failure_reason.startsWith('tunnel_response'))`
	// maxOutcomes bounds the counters of one scope. There are about ten sets of flags.
	maxOutcomes = 64
)

// Count returns a listener for clients that counts its connections, when they end, by Envoy's flags. ok is false for
// what is not a listener.
//
// The agent adds the counters instead of the xds-server: the policy needs no rule for them. No text of an edge or of a
// client is a part of a counter's name, so neither can make further ones.
func Count(resource *anypb.Any) (counted *anypb.Any, ok bool) {
	l := &listenerv3.Listener{}
	if resource.UnmarshalTo(l) != nil {
		return resource, false
	}
	for _, chain := range l.GetFilterChains() {
		for _, f := range chain.GetFilters() {
			proxy, manager := &tcpproxyv3.TcpProxy{}, &hcmv3.HttpConnectionManager{}
			switch config := f.GetTypedConfig(); {
			case config.UnmarshalTo(proxy) == nil:
				proxy.AccessLog = append(proxy.GetAccessLog(), counters(RouteSNI)...)
				f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: typed.Pack(proxy)}
			case config.UnmarshalTo(manager) == nil:
				manager.AccessLog = append(manager.GetAccessLog(), counters(RouteConnect)...)
				f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: typed.Pack(manager)}
			}
		}
	}
	return typed.Pack(l), true
}

func counters(route string) []*accesslogv3.AccessLog {
	ended := counter(route, "!"+edgeAnswered, &statsv3.Config_Stat{
		Name: endedCounter, Tags: []*statsv3.Config_Tag{{Name: flagsLabel, ValueFormat: "%RESPONSE_FLAGS%"}},
	})
	return []*accesslogv3.AccessLog{
		ended, counter(route, edgeAnswered, &statsv3.Config_Stat{Name: answeredCounter}),
	}
}

// counter is an access log that only counts.
func counter(route, expression string, stat *statsv3.Config_Stat) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.stats",
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
			ExtensionFilter: &accesslogv3.ExtensionFilter{
				Name: stat.GetName(),
				ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{
					TypedConfig: typed.Pack(&celv3.ExpressionFilter{Expression: expression}),
				},
			},
		}},
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: typed.Pack(&statsv3.Config{
			StatsScope: &typev3.Scope{Prefix: outcomePrefix + route, MaxCounters: wrapperspb.UInt32(maxOutcomes)},
			Counters:   []*statsv3.Config_Counter{{Stat: stat, ValueFixed: wrapperspb.UInt64(1)}},
		})},
	}
}

// Read returns the number of connections by route and outcome, from Envoy's counters in the form of Prometheus.
// Each route and outcome is in the result. Connections for a name that no workload cluster has are not counted.
func Read(families map[string]*dto.MetricFamily) map[string]map[Outcome]float64 {
	all := map[string]map[Outcome]float64{}
	for _, route := range []string{RouteSNI, RouteConnect} {
		of := map[Outcome]float64{Reached: 0, Failed: 0, Broken: 0}
		for _, m := range families["envoy_"+outcomePrefix+route+"_"+answeredCounter].GetMetric() {
			of[Reached] += m.GetCounter().GetValue()
		}
		for _, m := range families["envoy_"+outcomePrefix+route+"_"+endedCounter].GetMetric() {
			for _, l := range m.GetLabel() {
				if outcome, counts := outcomeOf(route, l.GetValue()); l.GetName() == flagsLabel && counts {
					of[outcome] += m.GetCounter().GetValue()
				}
			}
		}
		all[route] = of
	}
	return all
}

// outcomeOf returns the outcome of a connection with Envoy's flags, which are separated by commas; "-" are none. counts
// is false if no workload cluster has the name. Flags of a client that disconnects are no failure.
func outcomeOf(route, flags string) (outcome Outcome, counts bool) {
	outcome = Reached
	for flag := range strings.SplitSeq(flags, ",") {
		switch flag {
		case "NC", "NR": // no Envoy cluster, no route
			return "", false
		case "UC", "UR": // the reverse tunnel ended, or reset the stream
			outcome = Broken
		case "UF":
			// A TCP proxy keeps the flag of an attempt when a later one succeeds. If all fail, there is URX too.
			if route != RouteSNI {
				return Failed, true
			}
		case "UH", "UO", "URX", "UT", "LR", "OM": // see the flags that package accesslog logs
			return Failed, true
		}
	}
	return outcome, true
}
