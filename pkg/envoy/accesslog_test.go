package envoy_test

import (
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// Whatever an xds-server says of access logs, agents take it.
func TestAgentsTakeListenersWithEachAccessLog(t *testing.T) {
	for _, which := range []model.AccessLog{"", model.AccessLogFailed, model.AccessLogAll} {
		inst := ownInstallation()
		inst.AccessLog = which
		bind := envoy.GatewayBind{Public: model.Endpoint{Host: "0.0.0.0", Port: 443}, APIServer: model.Endpoint{Host: "0.0.0.0", Port: 6443}, Connect: model.Endpoint{Host: "::", Port: 3128}}
		for _, l := range envoy.GatewayListeners(inst, ownGateway.Node, bind, model.Denied{}) {
			takes(t, ownGateway, packed(t, l))
		}
		for _, l := range envoy.EdgeListeners(inst, ownCluster(), ownEdge.Node, envoy.EdgeDial{}) {
			takes(t, ownEdge, packed(t, l))
		}
	}
}

func takes(t *testing.T, subject model.Subject, resource *anypb.Any) {
	t.Helper()
	if err := envoy.FormsOf(domain, subject).Check(resource); err != nil {
		t.Error(err)
	}
}
