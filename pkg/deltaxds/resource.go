package deltaxds

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Resource is a resource as it is sent. It never changes, so streams may share it.
type Resource struct {
	message *discoveryv3.Resource
	version version
	size    int // in bytes, as it is sent
}

// Encode returns a resource of a type. Its version is the SHA-256 of its content in hexadecimal digits, so every server
// with the same resource has the same version. It returns an error if the content cannot be encoded.
func Encode(typeURL, name string, content proto.Message) (*Resource, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(content)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(value)
	return NewResource(&discoveryv3.Resource{
		Name: name, Version: hex.EncodeToString(sum[:]), Resource: &anypb.Any{TypeUrl: typeURL, Value: value},
	}), nil
}

// NewResource returns an encoded resource with the version that it has. The caller must not change it any more.
func NewResource(message *discoveryv3.Resource) *Resource {
	return &Resource{message, versionOf(message.GetVersion()), proto.Size(message)}
}

// Message returns the resource as it is sent; nil for nil. The caller must not change it.
func (r *Resource) Message() *discoveryv3.Resource {
	if r == nil {
		return nil
	}
	return r.message
}

// Name returns the name; empty for nil.
func (r *Resource) Name() string { return r.Message().GetName() }

// Version returns the version; empty for nil.
func (r *Resource) Version() string { return r.Message().GetVersion() }

// version identifies a version of a resource in half the memory of a SHA-256. There are about 60,000 of them in a
// server with 10,000 edges. Two versions of one resource with the same identity would take 2^64 attempts to find, and
// would only affect the client that made them up.
type version [16]byte

// unknown is the version of a resource that has to be sent again, or removed, whatever the client has.
var unknown version

// versionOf returns the identity of a version; unknown for an empty one. Versions that are hashes are not hashed again.
func versionOf(text string) (v version) {
	if text == "" {
		return unknown
	}
	if len(text) == hex.EncodedLen(sha256.Size) {
		if hash, err := hex.DecodeString(text); err == nil {
			return version(hash[:len(v)])
		}
	}
	sum := sha256.Sum256([]byte(text))
	return version(sum[:len(v)])
}

// Offer is what a client is to have of one type. It may be made without a lock: what takes time is done then.
type Offer struct {
	resources []*Resource // in name order
	gone      []string    // in name order
	whole     bool
}

// Whole returns an offer of exactly these resources, in any order. Each name must occur once.
func Whole(resources []*Resource) Offer {
	return Offer{resources: sorted(resources), whole: true}
}

// Part returns an offer of these resources without the ones that are gone, each in any order. It says nothing about
// other names. Each name must occur once, in one of the two.
func Part(resources []*Resource, gone []string) Offer {
	return Offer{resources: sorted(resources), gone: slices.Sorted(slices.Values(gone))}
}

func sorted(resources []*Resource) []*Resource {
	return slices.SortedFunc(
		slices.Values(resources), func(a, b *Resource) int { return strings.Compare(a.Name(), b.Name()) },
	)
}
