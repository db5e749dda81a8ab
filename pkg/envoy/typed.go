package envoy

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// pack encodes the configuration of an extension deterministically.
func pack(message proto.Message) *anypb.Any {
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, message, proto.MarshalOptions{Deterministic: true}); err != nil {
		// Only a string that is not UTF-8 cannot be encoded, and no validated name contains one.
		panic(err)
	}
	return packed
}
