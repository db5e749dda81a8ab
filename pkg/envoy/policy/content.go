package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/model"
)

var errScopeKey = errors.New("the key is not the name, so another apiserver would get these routes")

// checkContent checks what no text of policy.yaml can express.
func (p *Policy) checkContent(packed *anypb.Any, m proto.Message) error {
	switch m := m.(type) {
	case *routev3.ScopedRouteConfiguration:
		for _, fragment := range m.GetKey().GetFragments() {
			if fragment.GetStringKey() != m.GetName() {
				return errScopeKey
			}
		}
	case *listenerv3.Listener:
		if p.agent == string(model.RoleEdge) {
			if err := p.checkListens(m); err != nil {
				return err
			}
		}
	}
	return checkDials(packed)
}

// checkListens returns an error for a listener of an edge at an address that is not its own.
func (p *Policy) checkListens(l *listenerv3.Listener) error {
	at := l.GetAddress().GetSocketAddress()
	if strings.HasPrefix(at.GetAddress(), reversePrefix) {
		return nil
	}
	e := model.Endpoint{Host: at.GetAddress(), Port: uint16(at.GetPortValue())}
	if !slices.Contains(p.listen, e) || !strings.HasSuffix(l.GetName(), "_"+e.String()) {
		return fmt.Errorf("the Envoy of this edge does not listen at %.100q", e)
	}
	return nil
}

// reversePrefix is the prefix of the address of a listener that dials a gateway.
const reversePrefix = "rc://"

// checkDials returns an error for a DNS cache that dials an address of model.NeverDialled.
func checkDials(packed *anypb.Any) error {
	dialled, err := network.Dials(packed)
	if err != nil {
		return err
	}
	for _, d := range dialled {
		for _, never := range model.NeverDialled() {
			if d.Overlaps(never) {
				return fmt.Errorf("it dials %s, and no edge dials %s", d, never)
			}
		}
	}
	return nil
}
