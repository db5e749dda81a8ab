package xdsproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
)

// nameField is the number of the field in which Envoy clusters and listeners have their names.
const nameField = 1

// parse takes a response apart: nil stands for a removal. It looks for faults in each resource, without the proxy's lock.
func parse(k kind, response *discoveryv3.DeltaDiscoveryResponse, check func(string, *anypb.Any) error) set {
	got := make(set, len(response.GetResources())+len(response.GetRemovedResources()))
	for _, name := range response.GetRemovedResources() {
		got[name] = nil
	}
	for _, message := range response.GetResources() {
		res := newResource(message)
		if res.fault = examine(k, res.message); res.fault == nil && check != nil {
			res.fault = check(k.typeURL(), res.message.GetResource())
		}
		got[res.message.GetName()] = res
	}
	return got
}

// newResource keeps of a message what Envoy has to know. Without a version of its own a resource has its hash.
func newResource(message *discoveryv3.Resource) *resource {
	version := message.GetVersion()
	if version == "" {
		sum := sha256.Sum256(message.GetResource().GetValue())
		version = hex.EncodeToString(sum[:])
	}
	return &resource{message: &discoveryv3.Resource{Name: message.GetName(), Version: version, Resource: message.GetResource()}}
}

// examine says why a resource may not be shown to Envoy. Envoy goes by the name that is in a resource: one with another name
// outside could take the place of a resource of another upstream.
func examine(k kind, message *discoveryv3.Resource) error {
	if message.GetName() == "" {
		return errors.New("a resource has no name")
	}
	if typeURL := message.GetResource().GetTypeUrl(); typeURL != k.typeURL() {
		return fmt.Errorf("resource %q is of type %q, not %q", message.GetName(), typeURL, k.typeURL())
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

// innerName reads the name of an encoded Envoy cluster or listener; the last one counts, as for any reader of protobuf.
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

// receive takes over a response of the xds-server, and answers it if nothing has to wait for Envoy.
func (s *share) receive(got set, nonce string) {
	touched := s.take(got)
	s.known, s.asked, s.nonce = true, true, nonce
	s.pending.nonces = append(s.pending.nonces, nonce)
	s.release(touched)
	s.admit(touched)
	if t := s.of.proxy.table(s.kind); t != nil {
		for name := range touched {
			s.agree(t, name)
		}
	}
	s.finish()
	s.of.proxy.wake()
}

// take changes what the xds-server believes that is here, and returns the names to look at. With the first answer on a
// stream that begins anew from what it was told, so all may differ from what Envoy is offered since the stream before.
func (s *share) take(got set) map[string]bool {
	first := s.base != nil
	if first {
		s.newest, s.base = s.base, nil
	}
	touched := make(map[string]bool, len(got))
	for name, res := range got {
		touched[name] = true
		if res == nil {
			delete(s.newest, name)
		} else {
			s.newest[name] = res
		}
	}
	if first {
		for _, name := range differing(s.newest, s.offered) {
			touched[name] = true
		}
	}
	return touched
}

// release gives what is refused another chance where the xds-server now says something else, and what was refused together
// with it.
func (s *share) release(touched map[string]bool) {
	for name, r := range s.refused {
		if s.newest[name].version() == r.version {
			continue
		}
		for _, name := range r.names {
			if other := s.refused[name]; other != nil && other.group == r.group {
				delete(s.refused, name)
				touched[name] = true
				if r.crashy {
					s.unwritten = true
					poke(s.of.wake)
				}
			}
		}
	}
	s.of.proxy.signal()
}

// admit offers Envoy what is new, unless there is a fault in any of it.
func (s *share) admit(touched map[string]bool) {
	changes, instead := set{}, set{}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(touched)) {
		if r := s.refused[name]; r != nil {
			s.object(r.why)
			continue
		}
		if owner := s.owners()[name]; s.newest[name] == nil && owner != nil && owner != s {
			continue // it takes back what it was refused, Envoy has nothing to do
		}
		changes[name] = s.newest[name]
		if err := s.fault(name); err != nil {
			faults = append(faults, err)
		}
		if old := s.offered[name]; old != nil {
			instead[name] = old
		}
	}
	if len(faults) > 0 {
		faults = faults[:min(len(faults), maxReasons)]
		maps.DeleteFunc(changes, func(name string, res *resource) bool { return res.version() == instead[name].version() })
		err := errors.Join(faults...)
		s.of.proxy.log.Error("resources rejected before Envoy", "upstream", s.of.name, "type_url", s.kind.typeURL(), "error", err)
		s.refuse(changes, newStatus(codes.InvalidArgument, err.Error()), false, instead)
		return
	}
	for name, res := range changes {
		s.pending.waiting[name] = res.version()
		s.offer(name, res)
	}
}

// fault says why the newest version of a resource may not be shown to Envoy.
func (s *share) fault(name string) error {
	res := s.newest[name]
	if res == nil {
		return nil
	}
	if owner := s.owners()[name]; owner != nil && owner != s {
		return fmt.Errorf("resource %q belongs to another xds-server of this Envoy", name)
	}
	return res.fault
}
