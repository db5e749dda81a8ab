package progress

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/status"

	"github.com/fairlead/fairlead/pkg/model"
)

// TestANodeRefusesUntilItAcceptsWhatItRejected: a rollout must not go on because the next resource was accepted.
func TestANodeRefusesUntilItAcceptsWhatItRejected(t *testing.T) {
	labels := []string{"role", "type"}
	r := &Recorder{
		Sent:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sent"}, labels),
		Answered: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "answered"}, append(labels, "answer")),
		Took:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "took"}, labels[:1]),
	}
	var p Progress
	exchange := func(nonce, name string, why *status.Status) {
		r.Send(model.RoleEdge, &p, &discoveryv3.DeltaDiscoveryResponse{
			Nonce: nonce, Resources: []*discoveryv3.Resource{{Name: name}},
		}, 0)
		r.Answer(model.RoleEdge, &p, &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: nonce, ErrorDetail: why})
	}
	if exchange("1", "x", &status.Status{Message: "no"}); !p.Refuses() {
		t.Error("the node does not refuse x, which it has rejected")
	}
	if exchange("2", "y", nil); !p.Refuses() {
		t.Error("the node no longer refuses x, because it has accepted y")
	}
	if exchange("3", "x", nil); p.Refuses() {
		t.Error("the node refuses x, which it has accepted")
	}
}
