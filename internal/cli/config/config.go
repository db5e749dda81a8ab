// Package config is the command group config: what the xds-servers sent to the Envoys, what those run, and why a hostname leads where it
// leads. It asks the xds-servers and the management cluster, and writes nothing.
package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/command"
)

// configFlags are those of all config commands.
type configFlags struct {
	management.Flags
	management.ServersFlags
	output.Options
}

func (f *configFlags) addTo(cmd *cobra.Command) {
	f.Flags.AddTo(cmd.Flags())
	f.ServersFlags.AddTo(cmd)
}

// Command is the command group config.
func Command() *cobra.Command {
	return command.Group("config", "See what was sent to the Envoys, and what they made of it", configSyncCommand(), configDumpCommand(), configWhyCommand())
}

// The short names of types.
var typeNames = map[string]string{resourcev3.ClusterType: "cds", resourcev3.ListenerType: "lds"}

// typeOf is the inverse; empty for an unknown name.
func typeOf(name string) string {
	for typeURL, short := range typeNames {
		if short == strings.ToLower(name) {
			return typeURL
		}
	}
	return ""
}

// asJSON is a resource as JSON with sorted keys, in which equal resources are equal.
func asJSON(body *anypb.Any) (json.RawMessage, error) {
	message, err := body.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("reading what was sent: %w", err)
	}
	return canonical(message)
}

// canonical makes JSON of a message that does not depend on protojson's spacing.
func canonical(message proto.Message) (json.RawMessage, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("writing JSON: %w", err)
	}
	return sortKeys(text)
}

func sortKeys(text json.RawMessage) (json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("reading JSON: %w", err)
	}
	return json.Marshal(value)
}

// fromEnvoy is what Envoy prints of a resource in the same form. What this program does not know, as an Envoy of another version may have
// it, stays as Envoy has it.
func fromEnvoy(typeURL string, text json.RawMessage) (json.RawMessage, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var message proto.Message = &clusterv3.Cluster{}
	if typeURL == resourcev3.ListenerType {
		message = &listenerv3.Listener{}
	}
	if protojson.Unmarshal(withoutTypes(text), message) != nil {
		return sortKeys(withoutTypes(text))
	}
	return canonical(message)
}

// withoutTypes leaves out the @type of the outermost message.
func withoutTypes(text json.RawMessage) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil || fields["@type"] == nil {
		return text
	}
	delete(fields, "@type")
	if bare, err := json.Marshal(fields); err == nil {
		return bare
	}
	return text
}

// asLines is JSON as YAML, by lines.
func asLines(text json.RawMessage) []string {
	if len(text) == 0 {
		return nil
	}
	written, err := yaml.JSONToYAML(text)
	if err != nil {
		return []string{string(text)}
	}
	return strings.Split(strings.TrimSuffix(string(written), "\n"), "\n")
}

// short is a version as people compare it.
func short(version string) string { return version[:min(len(version), 12)] }

// cutLine is a text cut to one line of a table.
func cutLine(text string, most int) string {
	line, _, more := strings.Cut(strings.TrimSpace(text), "\n")
	if runes := []rune(line); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	if more {
		return line + " …"
	}
	return line
}
