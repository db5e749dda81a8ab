package xdsproxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

// magic begins every file, and its number is the version of the format. A file is the magic and sections. A section is
// the SHA-256 and the length of its body, and the body: two messages of ADS, each after its length. They are the
// response that Envoy accepted, and the request that rejected what Envoy must not get again. The first section has all
// resources. Each later section has the resources that changed since, so that one change among 10,000 does not write
// 20 MB.
const magic = "fairlead resources 2\n"

// head is the size of the header of a section: checksum, and length as a big-endian number.
const head = sha256.Size + 8

var (
	errForeign   = errors.New("it is not a cache of resources in the format of this program")
	errDamaged   = errors.New("its checksum does not match")
	errMalformed = errors.New("its content cannot be decoded")
	errElse      = errors.New("it is the cache of another xds-server or type")
)

// content is the content of a file or of a section.
type content struct {
	upstream string
	kind     relay.Kind
	set      relay.Set         // in a section of changes, nil is a removal
	rejected map[string]string // versions with which Envoy ended, by name; an empty version is a removal
	why      string            // why they were rejected
}

// contentOf returns the content of a file or of a section that has to be written.
func contentOf(upstream string, out relay.File) content {
	c := content{upstream: upstream, kind: out.Kind, set: out.Set}
	if out.Rejected != nil {
		c.rejected, c.why = out.Rejected.Versions, out.Rejected.Message
	}
	return c
}

// rejection returns what was rejected after crashes; nil: nothing.
func (c content) rejection() *relay.Rejection {
	if len(c.rejected) == 0 {
		return nil
	}
	return &relay.Rejection{Versions: c.rejected, Code: codes.Aborted, Message: c.why, Crash: true}
}

// section appends a section to data. Equal contents have equal bytes.
func (c content) section(data []byte) ([]byte, error) {
	response := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl:      c.kind.TypeURL(),
		ControlPlane: &corev3.ControlPlane{Identifier: c.upstream},
	}
	for _, name := range slices.Sorted(maps.Keys(c.set)) {
		if res := c.set[name]; res != nil {
			message := &discoveryv3.Resource{Name: name, Version: res.Version, Resource: res.Body}
			response.Resources = append(response.Resources, message)
		} else {
			response.RemovedResources = append(response.RemovedResources, name)
		}
	}
	request := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: c.kind.TypeURL(), InitialResourceVersions: c.rejected}
	if c.why != "" {
		request.ErrorDetail = &statusv1.Status{Message: c.why}
	}
	data = slices.Grow(data, head+proto.Size(response)+proto.Size(request)+2*protowire.SizeVarint(1<<63))
	at := len(data)
	data = append(data, make([]byte, head)...)
	for _, message := range []proto.Message{response, request} {
		data = protowire.AppendVarint(data, uint64(proto.Size(message)))
		var err error
		if data, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(data, message); err != nil {
			return nil, fmt.Errorf("encoding resources: %w", err)
		}
	}
	seal(data[at:])
	return data, nil
}

// seal fills in the header of a section.
func seal(section []byte) {
	binary.BigEndian.PutUint64(section[sha256.Size:], uint64(len(section)-head))
	sum := sha256.Sum256(section[sha256.Size:])
	copy(section, sum[:])
}

// decode parses a file of an upstream and a type. whole is the number of bytes in complete sections: a crash may leave
// part of the last section, and the others remain usable. The error is about the first section.
func decode(data []byte, upstream string, k relay.Kind) (c content, whole int, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return content{}, 0, errForeign
	}
	c = content{upstream: upstream, kind: k, set: relay.Set{}}
	for first := true; len(rest) > 0 || first; first = false {
		body, n := cut(rest)
		if n == 0 {
			err = errDamaged
		} else {
			err = c.read(body)
		}
		if err != nil && first {
			return content{}, 0, err
		}
		if err != nil {
			break
		}
		rest = rest[n:]
	}
	return c, len(data) - len(rest), nil
}

// cut returns the body of the first section and the size of that section; 0 if the section is incomplete or damaged.
func cut(data []byte) (body []byte, n int) {
	if len(data) < head {
		return nil, 0
	}
	size := binary.BigEndian.Uint64(data[sha256.Size:])
	if size > uint64(len(data)-head) {
		return nil, 0
	}
	n = head + int(size)
	if sum := sha256.Sum256(data[sha256.Size:n]); !bytes.Equal(sum[:], data[:sha256.Size]) {
		return nil, 0
	}
	return data[head:n], n
}

// read applies the body of a section, completely or not at all.
func (c *content) read(body []byte) error {
	var response discoveryv3.DeltaDiscoveryResponse
	var request discoveryv3.DeltaDiscoveryRequest
	for _, message := range []proto.Message{&response, &request} {
		part, n := protowire.ConsumeBytes(body)
		if n < 0 || proto.Unmarshal(part, message) != nil {
			return errMalformed
		}
		body = body[n:]
	}
	if len(body) > 0 {
		return errMalformed
	}
	if response.GetControlPlane().GetIdentifier() != c.upstream || response.GetTypeUrl() != c.kind.TypeURL() {
		return errElse
	}
	changes := relay.Set{}
	for _, message := range response.GetResources() {
		name := message.GetName()
		if err := examine(c.kind, message); err != nil || changes[name] != nil || message.GetVersion() == "" {
			return errMalformed
		}
		changes[name] = newResource(c.kind, message)
	}
	maps.Copy(c.set, changes)
	for _, name := range response.GetRemovedResources() {
		delete(c.set, name)
	}
	c.rejected, c.why = request.GetInitialResourceVersions(), request.GetErrorDetail().GetMessage()
	return nil
}
