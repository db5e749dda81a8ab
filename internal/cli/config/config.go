// Package config is the command group config: what the xds-servers sent to the Envoys, what the Envoys run, and how
// the endpoint of a hostname is determined. It queries the xds-servers and the management cluster, and writes
// nothing.
package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
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

// configFlags are the flags of all config commands.
type configFlags struct {
	management.Flags
	management.ServersFlags
	output.Options
}

func (f *configFlags) addTo(cmd *cobra.Command) {
	f.Flags.AddTo(cmd.Flags())
	f.ServersFlags.AddTo(cmd)
}

// Command returns the command group config.
func Command() *cobra.Command {
	return command.Group(
		"config", "Compare the published configuration with what the Envoys run", configSyncCommand(), configDumpCommand(),
		configWhyCommand(),
	)
}

// typeNames maps type URLs to short names.
var typeNames = map[string]string{
	resourcev3.ClusterType: "cds", resourcev3.ScopedRouteType: "srds", resourcev3.ListenerType: "lds",
}

// typeOf returns the type URL of a short name, or an empty string for an unknown name.
func typeOf(name string) string {
	for typeURL, short := range typeNames {
		if short == strings.ToLower(name) {
			return typeURL
		}
	}
	return ""
}

// asJSON returns a resource as JSON with sorted keys, so that equal resources have equal JSON.
func asJSON(body *anypb.Any) (json.RawMessage, error) {
	message, err := body.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("reading what was sent: %w", err)
	}
	return canonical(message)
}

// canonical returns JSON that does not depend on protojson's spacing.
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

// fromEnvoy converts Envoy's JSON of a resource to the same form. It returns the JSON unchanged if this program does
// not know the message, for example of another Envoy version.
func fromEnvoy(typeURL string, text json.RawMessage) (json.RawMessage, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var message proto.Message = &clusterv3.Cluster{}
	switch typeURL {
	case resourcev3.ListenerType:
		message = &listenerv3.Listener{}
	case resourcev3.ScopedRouteType:
		message = &routev3.ScopedRouteConfiguration{}
	}
	if protojson.Unmarshal(withoutTypes(text), message) != nil {
		return sortKeys(withoutTypes(text))
	}
	return canonical(message)
}

// withoutTypes removes the @type of the outermost message.
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

// asLines returns the lines of JSON as YAML.
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

// short returns the part of a version that people compare.
func short(version string) string { return version[:min(len(version), 12)] }

// cutLine shortens a text to one line of a table.
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
