package xds

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestOneTunnelCannotHideRejectionsOfOthers has 1,000 edges of one tunnel reject something, and one of each of 150
// other tunnels, in any order.
func TestOneTunnelCannotHideRejectionsOfOthers(t *testing.T) {
	all := []*reportv1.NodeProfile{{Node: "gateway-0"}, {Node: "gateway-1"}, {Node: "gateway-2"}}
	for i := range 1000 {
		all = append(all, &reportv1.NodeProfile{Node: fmt.Sprintf("edge-%d", i), TunnelId: "a"})
	}
	for i := range 150 {
		all = append(all, &reportv1.NodeProfile{Node: "edge-0", TunnelId: fmt.Sprintf("b%d", i)})
	}
	var before *reportv1.ProfileState
	for range 3 {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		now := &reportv1.ProfileState{Nodes: announced(all)}
		if len(now.GetNodes()) != 3+maxAnnouncedOfTunnel+150 {
			t.Errorf("%d nodes are announced", len(now.GetNodes()))
		}
		if before != nil && !proto.Equal(before, now) {
			t.Error("others are announced than before")
		}
		before = now
	}
	for i := range 1000 {
		all = append(all, &reportv1.NodeProfile{Node: "edge-0", TunnelId: fmt.Sprintf("c%d", i)})
	}
	if n := len(announced(all)); n != maxAnnounced {
		t.Errorf("%d nodes are announced, the bound is %d", n, maxAnnounced)
	}
}
