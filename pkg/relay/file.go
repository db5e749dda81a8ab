package relay

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// magic begins every file. Its number is that of the format: the magic, the SHA-256 of all that follows, and two messages of
// ADS, each after its length: the response that Envoy accepted, and the request that refused what it is not to have again.
const magic = "fairlead resources 1\n"

var (
	errForeign   = errors.New("it is no cache of resources in the format of this program")
	errDamaged   = errors.New("its checksum does not fit")
	errMalformed = errors.New("what is in it can't be read")
	errElse      = errors.New("it is the cache of something else")
)

// content is what a file holds.
type content struct {
	upstream string
	kind     kind
	set      set
	refused  map[string]string // versions that Envoy ended with, by name; empty: that there is none
	why      string            // they were refused
}

// encode returns the bytes of a file: the same for the same content.
func (c content) encode() ([]byte, error) {
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: c.kind.typeURL(), ControlPlane: &corev3.ControlPlane{Identifier: c.upstream}}
	for _, name := range slices.Sorted(maps.Keys(c.set)) {
		response.Resources = append(response.Resources, c.set[name].message)
	}
	request := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: c.kind.typeURL(), InitialResourceVersions: c.refused}
	if c.why != "" {
		request.ErrorDetail = newStatus(0, c.why)
	}
	data := make([]byte, 0, len(magic)+sha256.Size+proto.Size(response)+proto.Size(request)+2*protowire.SizeVarint(1<<63))
	data = append(data, magic...)
	data = append(data, make([]byte, sha256.Size)...)
	for _, message := range []proto.Message{response, request} {
		data = protowire.AppendVarint(data, uint64(proto.Size(message)))
		var err error
		if data, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(data, message); err != nil {
			return nil, fmt.Errorf("encoding resources: %w", err)
		}
	}
	sum := sha256.Sum256(data[len(magic)+sha256.Size:])
	copy(data[len(magic):], sum[:])
	return data, nil
}

// decode reads the bytes of a file that should be about an upstream and a type. It never returns a part.
func decode(data []byte, upstream string, k kind) (content, error) {
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return content{}, errForeign
	}
	if len(rest) < sha256.Size {
		return content{}, errDamaged
	}
	if sum := sha256.Sum256(rest[sha256.Size:]); !bytes.Equal(sum[:], rest[:sha256.Size]) {
		return content{}, errDamaged
	}
	rest = rest[sha256.Size:]
	var response discoveryv3.DeltaDiscoveryResponse
	var request discoveryv3.DeltaDiscoveryRequest
	for _, message := range []proto.Message{&response, &request} {
		part, n := protowire.ConsumeBytes(rest)
		if n < 0 || proto.Unmarshal(part, message) != nil {
			return content{}, errMalformed
		}
		rest = rest[n:]
	}
	if len(rest) > 0 {
		return content{}, errMalformed
	}
	if response.GetControlPlane().GetIdentifier() != upstream || response.GetTypeUrl() != k.typeURL() {
		return content{}, errElse
	}
	c := content{upstream: upstream, kind: k, set: set{}, refused: request.GetInitialResourceVersions(), why: request.GetErrorDetail().GetMessage()}
	for _, message := range response.GetResources() {
		name := message.GetName()
		if err := examine(k, message); err != nil || c.set[name] != nil || message.GetVersion() == "" {
			return content{}, errMalformed
		}
		c.set[name] = newResource(message)
	}
	return c, nil
}
