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

// nameField is the number of the field that holds the name of an Envoy cluster or listener.
const nameField = 1

// parse splits a response into changes: nil is a removal. It validates each resource without holding the proxy's lock.
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

// newResource returns the part of a message that Envoy needs. A resource without a version gets its hash as version.
func newResource(message *discoveryv3.Resource) *resource {
	version := message.GetVersion()
	if version == "" {
		sum := sha256.Sum256(message.GetResource().GetValue())
		version = hex.EncodeToString(sum[:])
	}
	return &resource{
		message: &discoveryv3.Resource{Name: message.GetName(), Version: version, Resource: message.GetResource()},
	}
}

// examine returns an error if a resource must not be sent to Envoy. Envoy uses the name inside a resource: if the
// outer name differs, it could replace a resource of another upstream.
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

// innerName reads the name of an encoded Envoy cluster or listener. The last name counts, as for any protobuf parser.
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

// receive applies a response of the xds-server, and answers it if nothing has to wait for Envoy.
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
	s.of.proxy.notifySession()
}

// take updates the state that the xds-server assumes here, and returns the names to compare. The first answer on a
// stream starts again from the versions that the request named, so every resource may differ from what Envoy is
// offered since the previous stream.
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

// release lifts the rejection of resources that the xds-server has changed, and of all resources rejected together
// with them.
func (s *share) release(touched map[string]bool) {
	for name, r := range s.rejected {
		if s.newest[name].version() == r.version {
			continue
		}
		for _, name := range r.names {
			if other := s.rejected[name]; other != nil && other.group == r.group {
				delete(s.rejected, name)
				touched[name] = true
				if r.afterCrash {
					s.unwritten = true
					notify(s.of.notified)
				}
			}
		}
	}
	s.of.proxy.notifyChanged()
}

// admit offers Envoy the changes, unless one of them has a fault.
func (s *share) admit(touched map[string]bool) {
	changes, instead := set{}, set{}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(touched)) {
		if r := s.rejected[name]; r != nil {
			s.object(r.why)
			continue
		}
		if owner := s.owners()[name]; s.newest[name] == nil && owner != nil && owner != s {
			continue // the xds-server removes a rejected resource, which Envoy does not have
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
		s.of.proxy.log.Error(
			"resources rejected before Envoy", "upstream", s.of.name, "type_url", s.kind.typeURL(), "error", err,
		)
		s.reject(changes, newStatus(codes.InvalidArgument, err.Error()), false, instead)
		return
	}
	for name, res := range changes {
		s.pending.waiting[name] = res.version()
		s.offer(name, res)
		if res != nil {
			s.displace(name)
		}
	}
}

// fault returns why the newest version of a resource must not be sent to Envoy; nil: it may be.
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
