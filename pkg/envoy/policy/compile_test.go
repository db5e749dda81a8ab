package policy

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/model"
)

// TestFaultsInAFile checks that each error is reported with its line: a rule without effect must not go unnoticed.
func TestFaultsInAFile(t *testing.T) {
	scope := Scope{
		Domain:  "tunnels.example.com",
		Subject: model.Subject{Role: model.RoleEdge, Node: "edge-a", ID: "aaaaaaaaaaaaaaaaaaaa"},
	}
	const head = "variables: {label: '[a-z]*'}\nedge:\n  envoy.config.cluster.v3.Cluster:\n  - name!: x\n"
	for name, tc := range map[string]struct{ rule, want string }{
		"none":                        {"    type: STATIC", ""},
		"a field that does not exist": {"    colour: red", `line 5: envoy.config.cluster.v3.Cluster has no field "colour"`},
		"a field twice":               {"    type: STATIC\n    type!: STATIC", `"type" is here twice`},
		"a value that does not exist": {
			"    type: SOMEHOW",
			`line 5: envoy.config.cluster.v3.Cluster.DiscoveryType has no "SOMEHOW"`,
		},
		"a text for a message": {
			"    load_assignment: x",
			"line 5: envoy.config.endpoint.v3.ClusterLoadAssignment is not a single value",
		},
		"a message for a text": {
			"    alt_stat_name: {x: y}",
			"line 5: envoy.config.cluster.v3.Cluster.alt_stat_name takes a single value",
		},
		"a variable that is not there":  {"    alt_stat_name: '{x}'", "line 5: {x} stands for nothing"},
		"no bounds":                     {"    connect_timeout: soon", `line 5: "soon" has no bounds`},
		"bounds the wrong way round":    {"    connect_timeout: 5s..1s", `line 5: "5s..1s" has no bounds`},
		"an extension without type":     {"    transport_socket: {typed_config: {}}", "line 5: an extension needs its @type"},
		"an extension that is unknown":  {"    transport_socket: {typed_config: {'@type': x.Y}}", "line 5: x.Y"},
		"a list for a message":          {"    load_assignment: [x]", "line 5: this must be a mapping"},
		"a resource without a name":     {"  - type: STATIC", "a envoy.config.cluster.v3.Cluster must have a name"},
		"bytes, which can't be checked": {"    health_checks: {tcp_health_check: {send: {binary: x}}}", "holds bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := parse([]byte(head + tc.rule + "\n"))
			if err == nil {
				_, err = compile(d, scope)
			}
			if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}
