package chart_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/golden"
)

const documentHeader = `# Values of the chart

For operators who install Fairlead with Helm: each value of the chart [fairlead](../../deploy/chart/fairlead).
[Install](../install.md) explains which of them to choose. ` + "`make update-golden`" + ` writes this page from the comments in
[values.yaml](../../deploy/chart/fairlead/values.yaml), and a test shows the effect of each value.

| value | default | meaning |
|---|---|---|
`

// described is a value of values.yaml with its comment.
type described struct{ name, comment string }

var key = regexp.MustCompile(`^( *)([a-zA-Z]+):(.*)$`)

// describe reads the values of values.yaml, in their order, with the comment before each.
func describe(t *testing.T, leaves []string) (all []described) {
	t.Helper()
	data, err := os.ReadFile(folder + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var comment []string
	group := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		trimmed := strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(trimmed, "#"); ok {
			comment = append(comment, strings.TrimSpace(text))
			continue
		}
		if match := key.FindStringSubmatch(line); match != nil {
			name := match[2]
			if match[1] == "" {
				group = name
			} else {
				name = group + "." + name
			}
			if len(match[1]) <= 2 && slices.Contains(leaves, name) {
				all = append(all, described{name, strings.Join(comment, " ")})
			}
		}
		comment = nil
	}
	return all
}

func TestTheDocumentMatchesTheCode(t *testing.T) {
	names := leaves(t)
	all := describe(t, names)
	if len(all) != len(names) {
		t.Fatalf("values.yaml has %d values, and the reader finds %d", len(names), len(all))
	}
	var document strings.Builder
	document.WriteString(documentHeader)
	defaults := defaultValues(t)
	for _, v := range all {
		if v.comment == "" {
			t.Errorf("%s has no comment", v.name)
		}
		value := flow(at(defaults, v.name))
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&document, "| `%s` | %s | %s |\n", v.name, value, v.comment)
	}
	golden.CheckFile(t, root+"/docs/reference/chart.md", []byte(document.String()))
}

func defaultValues(t *testing.T) map[string]any {
	t.Helper()
	data, err := os.ReadFile(folder + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := yaml.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// flow writes a value as YAML on one line. An empty text is empty.
func flow(value any) string {
	switch v := value.(type) {
	case map[string]any:
		var all []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			all = append(all, name+": "+flow(v[name]))
		}
		return "{" + strings.Join(all, ", ") + "}"
	case []any:
		var all []string
		for _, item := range v {
			all = append(all, flow(item))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	return fmt.Sprint(value)
}

// sizes matches a row of the table of sizes in docs/install.md: workload clusters, and the memory of the xds-server,
// the controller and a gateway.
var sizes = regexp.MustCompile(`(?m)^\| ([0-9,]+) \| ([0-9.]+ [GM]B)[^|]*\| ([0-9.]+ [GM]B) \| ([0-9.]+ [GM]B) \|$`)

// TestLimitsHoldForTheDocumentedSizes: each limit of memory leaves a quarter above the largest documented size, so the
// kernel ends no process at a size that the documents promise. A gateway rejects connections before that point.
func TestLimitsHoldForTheDocumentedSizes(t *testing.T) {
	data, err := os.ReadFile(root + "/docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := sizes.FindAllStringSubmatch(string(data), -1)
	if len(rows) < 4 || rows[len(rows)-1][1] != "10,000" {
		t.Fatalf("docs/install.md has the sizes %v", rows)
	}
	chart := renderOnce(t, "{}")
	for i, key := range []string{"", "", xdsServer, controller, gateway} {
		if key == "" {
			continue
		}
		limit, err := resource.ParseQuantity(fmt.Sprint(at(chart[key].Object, container+"resources.limits.memory")))
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		for _, row := range rows {
			if need := bytesOf(t, row[i]) * 5 / 4; limit.Value() < need {
				t.Errorf("%s has the limit %s, and uses %s with %s workload clusters", key, limit.String(), row[i], row[1])
			}
		}
	}
}

// bytesOf parses a size such as "1.3 GB".
func bytesOf(t *testing.T, size string) int64 {
	t.Helper()
	number, unit, _ := strings.Cut(size, " ")
	value, err := strconv.ParseFloat(number, 64)
	if err != nil {
		t.Fatal(err)
	}
	if unit == "GB" {
		value *= 1000
	}
	return int64(value * 1e6)
}

// TestEnvoyStopsBelowTheLimitOfItsContainer: Envoy and the agent share the limit, in any unit.
func TestEnvoyStopsBelowTheLimitOfItsContainer(t *testing.T) {
	for limit, want := range map[string]string{
		"2Gi": "1536Mi", "512Mi": "384Mi", "4G": "2861Mi", "1048576Ki": "768Mi", "2147483648": "1536Mi",
	} {
		set := values("gateway: {resources: {limits: {memory: " + limit + "}}}")
		args := at(render(t, set)[gateway].Object, container+"args")
		if !matches(args, "contains --envoy-memory="+want) {
			t.Errorf("with the limit %s the flags are %v, want --envoy-memory=%s", limit, args, want)
		}
	}
}
