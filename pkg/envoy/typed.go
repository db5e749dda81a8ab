package envoy

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// pack wraps the configuration of an extension, always into the same bytes.
func pack(message proto.Message) *anypb.Any {
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, message, proto.MarshalOptions{Deterministic: true}); err != nil {
		// Only a string that is not UTF-8 can't be encoded, and no validated name has one.
		panic(err)
	}
	return packed
}
