package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/model"
)

// csds is the standard xDS service, which any xDS client can call.
const csds = "envoy.service.status.v3.ClientStatusDiscoveryService"

// grpcurl runs the program of that name, as operators do. It knows about this server only what reflection returns.
func grpcurl(t *testing.T, arguments ...string) string {
	t.Helper()
	program := filepath.Join("..", "..", "bin", "grpcurl")
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatalf("no grpcurl: run `make tools`: %v", err)
		}
		t.Skipf("no grpcurl: run `make tools`: %v", err)
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), program, append([]string{"-plaintext", "-max-time", "30"}, arguments...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("grpcurl %v: %v: %s", arguments, err, stderr.String())
	}
	return string(out)
}

// seenByGRPCURL inspects an edge and the configuration that was sent to it.
func seenByGRPCURL(t *testing.T, address, node string) {
	t.Helper()
	if out := grpcurl(t, address, "list"); !strings.Contains(out, csds+"\n") ||
		!strings.Contains(out, "fairlead.inspect.v1.Inspect\n") {
		t.Errorf("there is\n%s", out)
	}
	if out := grpcurl(t, address, "describe", csds); !strings.Contains(
		out, "rpc FetchClientStatus ( .envoy.service.status.v3.ClientStatusRequest )",
	) {
		t.Errorf("got\n%s", out)
	}
	type seen struct {
		Config []struct {
			Node struct {
				ID       string
				Metadata struct{ Role string }
			}
			ClientScope       string
			GenericXdsConfigs []struct {
				Name, VersionInfo, ClientStatus string
				XdsConfig                       struct {
					Type string `json:"@type"`
					Name string
				}
			}
		}
	}
	fetch := func(nodes int, arguments ...string) (got seen) {
		out := grpcurl(t, append(arguments, address, csds+"/FetchClientStatus")...)
		if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Config) != nodes {
			t.Fatalf("got %v and\n%s", err, out)
		}
		return got
	}
	// The call is in a trace of its own. Packed messages are shown too, although grpcurl does not have their types.
	one := fetch(1, "-H", "traceparent: 00-"+callersTrace+"-"+callersSpan+"-01", "-d",
		`{"node_matchers": [{"node_id": {"exact": "`+model.NodeID(node)+`"}}]}`).Config[0]
	if one.Node.ID != model.NodeID(node) || one.ClientScope != model.NodeID(node) || one.Node.Metadata.Role != "edge" {
		t.Errorf("got %+v", one)
	}
	found := false
	for _, r := range one.GenericXdsConfigs {
		found = found ||
			r.Name == "apiserver_"+node && r.XdsConfig.Name == r.Name && r.VersionInfo != "" && r.ClientStatus != "" &&
				r.XdsConfig.Type == "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	}
	if !found {
		t.Errorf("the way to the apiserver is not in %+v", one.GenericXdsConfigs)
	}
	// All connected nodes, which are the edge and a gateway, without contents.
	for _, bare := range fetch(2, "-d", `{"exclude_resource_contents": true}`).Config {
		if bare.ClientScope != bare.Node.ID || len(bare.GenericXdsConfigs) == 0 ||
			bare.GenericXdsConfigs[0].XdsConfig.Type != "" {
			t.Errorf("without contents: %+v", bare)
		}
	}
}
