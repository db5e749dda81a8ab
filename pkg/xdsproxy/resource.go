package xdsproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

// nameField is the number of the field that holds the name of an Envoy cluster, scope or listener.
const nameField = 1

// parse splits a response into changes: nil is a removal. It validates each resource.
func parse(
	k relay.Kind, response *discoveryv3.DeltaDiscoveryResponse, check func(string, *anypb.Any) error,
) relay.Set {
	changes := make(relay.Set, len(response.GetResources())+len(response.GetRemovedResources()))
	for _, name := range response.GetRemovedResources() {
		changes[name] = nil
	}
	for _, message := range response.GetResources() {
		res := newResource(k, message)
		err := examine(k, message)
		if err == nil && check != nil {
			err = check(k.TypeURL(), res.Body)
		}
		if err != nil {
			res.Fault = err.Error()
		}
		changes[res.Name] = res
	}
	return changes
}

// newResource returns the resource of a message. One without a version gets its hash as version.
func newResource(k relay.Kind, message *discoveryv3.Resource) *relay.Resource {
	res := &relay.Resource{Name: message.GetName(), Version: message.GetVersion(), Body: message.GetResource()}
	if res.Version == "" {
		sum := sha256.Sum256(message.GetResource().GetValue())
		res.Version = hex.EncodeToString(sum[:])
	}
	if k == relay.Listeners {
		res.Address = address(res.Body)
	}
	return res
}

// address returns what identifies the address of a listener; empty: it has none, or Envoy will reject it.
func address(body *anypb.Any) string {
	l := &listenerv3.Listener{}
	if body.UnmarshalTo(l) != nil {
		return ""
	}
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(l.GetAddress())
	if err != nil {
		return ""
	}
	return string(key)
}

// examine returns an error if a resource must not be sent to Envoy. Envoy uses the name inside a resource: if the
// outer name differs, it could replace a resource of another upstream.
func examine(k relay.Kind, message *discoveryv3.Resource) error {
	if message.GetName() == "" {
		return errors.New("a resource has no name")
	}
	if typeURL := message.GetResource().GetTypeUrl(); typeURL != k.TypeURL() {
		return fmt.Errorf("resource %q is of type %q, not %q", message.GetName(), typeURL, k.TypeURL())
	}
	inner, err := innerName(message.GetResource().GetValue())
	if err != nil {
		return fmt.Errorf("reading resource %q: %w", message.GetName(), err)
	}
	if inner != message.GetName() {
		return fmt.Errorf("resource %q has the name %q in its content", message.GetName(), inner)
	}
	return nil
}

// innerName reads the name of an encoded Envoy cluster, scope or listener. The last name counts, as for any protobuf
// parser.
func innerName(data []byte) (name string, err error) {
	for len(data) > 0 {
		number, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return "", protowire.ParseError(n)
		}
		data = data[n:]
		if number == nameField && typ == protowire.BytesType {
			value, n := protowire.ConsumeBytes(data)
			if n < 0 {
				return "", protowire.ParseError(n)
			}
			name, data = string(value), data[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, typ, data); n < 0 {
			return "", protowire.ParseError(n)
		}
		data = data[n:]
	}
	return name, nil
}
