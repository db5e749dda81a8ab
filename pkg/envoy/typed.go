package envoy

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// pack encodes the configuration of an extension deterministically.
func pack(message proto.Message) *anypb.Any { return typed.Pack(message) }
