package envoy

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// MarshalYAML encodes a bootstrap, or any other message of Envoy, as YAML for `envoy -c`. Its keys are sorted, and
// equal messages give equal bytes, unlike protojson, whose spacing is random.
func MarshalYAML(message proto.Message) ([]byte, error) {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", message.ProtoReflect().Descriptor().Name(), err)
	}
	return yaml.JSONToYAML(data)
}
