package monitoring_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/deploy/monitoring"
	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/metrics"
)

const operatorHeader = `# rules.yaml for the Prometheus Operator: the same groups, written by ` + "`make update-golden`" + `.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fairlead
  namespace: fairlead-system
  labels:
    app.kubernetes.io/part-of: fairlead
    release: kube-prometheus-stack
spec:
`

func rules(t *testing.T) []monitoring.Rule {
	t.Helper()
	groups, err := monitoring.Rules()
	if err != nil {
		t.Fatal(err)
	}
	var all []monitoring.Rule
	for _, g := range groups {
		all = append(all, g.Rules...)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestPrometheusRulesMatchTheCode(t *testing.T) {
	text := read(t, "rules.yaml")
	var want strings.Builder
	want.WriteString(operatorHeader)
	for line := range strings.Lines(text[strings.Index(text, "groups:"):]) {
		if line != "\n" {
			want.WriteString("  ")
		}
		want.WriteString(line)
	}
	golden.CheckFile(t, "prometheusrule.yaml", []byte(want.String()))
}

// TestEachAlertHasItsRunbook compares alerts and sections, in both directions.
func TestEachAlertHasItsRunbook(t *testing.T) {
	var sections, alerts []string
	for _, m := range regexp.MustCompile(`(?m)^### (.*)$`).FindAllStringSubmatch(read(t, "../../docs/runbooks.md"), -1) {
		sections = append(sections, m[1])
	}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		alerts = append(alerts, r.Alert)
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has the severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s lacks a summary or a description", r.Alert)
		}
		if want := "https://github.com/fairlead/fairlead/blob/main/docs/" +
			"runbooks.md#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s has the runbook %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
	}
	slices.Sort(sections)
	slices.Sort(alerts)
	if !slices.Equal(sections, alerts) {
		t.Errorf("runbooks are of\n%v, alerts are\n%v", sections, alerts)
	}
}

// TestTheRunbookOfNetworksHasWhatALimitBounds: a limit bounds streams, and an apiserver has a few connections for all
// of its streams. The access log is off by default.
func TestTheRunbookOfNetworksHasWhatALimitBounds(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "../../docs/runbooks.md"), "\n### FairleadNetworkFails\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, want := range []string{
		"`spec.limits.connections`", `envoy_http_downstream_rq_active{envoy_http_conn_manager_prefix="egress"}`,
		"`--access-log=failed`",
	} {
		if !strings.Contains(section, want) {
			t.Errorf("the runbook has no %s:\n%s", want, section)
		}
	}
}

// TestEveryFigureIsInTheList checks rules and dashboard: the metrics that they use must be documented, and the
// recorded ones must be recorded.
func TestEveryFigureIsInTheList(t *testing.T) {
	known := map[string]bool{}
	for _, m := range slices.Concat(metrics.All(), metrics.Foreign()) {
		known[m.Name] = !m.PerCluster
		if m.Kind == metrics.Histogram {
			known[m.Name+"_bucket"], known[m.Name+"_sum"], known[m.Name+"_count"] = true, true, true
		}
	}
	for _, r := range rules(t) {
		if r.Record != "" {
			known[r.Record] = true
		}
	}
	check := func(where, expr string) {
		names := monitoring.Names(expr)
		if len(names) == 0 {
			t.Errorf("%s: %s has no figure", where, expr)
		}
		for _, name := range names {
			if !known[name] {
				t.Errorf(
					"%s: %s uses %s, which docs/metrics.md does not have, or only for each workload cluster", where, expr, name,
				)
			}
		}
	}
	for _, r := range rules(t) {
		check(r.Alert+r.Record, r.Expr)
	}
	queries, err := monitoring.Queries()
	if err != nil || len(queries) < 50 {
		t.Fatalf("the dashboard has %d queries: %v", len(queries), err)
	}
	for _, q := range queries {
		check(q.Panel, q.Expr)
	}
}

// TestRulesWithPromtool runs the tests of the rules: each alert fires in one, and does not fire in another.
func TestRulesWithPromtool(t *testing.T) {
	var file struct {
		Tests []struct {
			Name string `json:"name"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "rules_test.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, test := range file.Tests {
		tested[test.Name] = true
	}
	for _, r := range rules(t) {
		if r.Alert != "" && (!tested[r.Alert+" fires"] || !tested[r.Alert+" is quiet"]) {
			t.Errorf("%s is not tested both ways", r.Alert)
		}
	}
	promtool := kubetest.Part(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", "rules.yaml"}, {
		"test", "rules",
		"rules_test.yaml",
	}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// TestTheComponentEnablesMetrics builds the whole installation with the component.
func TestTheComponentEnablesMetrics(t *testing.T) {
	built, err := yaml.Marshal(kubetest.KustomizeUser(t, []string{"kubernetes"}, []string{"monitoring"}, ""))
	if err != nil {
		t.Fatal(err)
	}
	for what, n := range map[string]int{
		"--metrics-listen=:9090": 3, "name: metrics\n": 3, "kind: PodMonitor\n": 1, "kind: PrometheusRule\n": 1,
		"kind: NetworkPolicy\n": 4, `grafana_dashboard: "1"`: 1,
	} {
		if got := strings.Count(string(built), what); got != n {
			t.Errorf("%q is there %d times, want %d", what, got, n)
		}
	}
}

// TestLabelsOfMetricsAreKept: without honorLabels, Prometheus renames labels that it also gives to the target, and the
// namespace of a Cluster becomes that of the installation.
func TestLabelsOfMetricsAreKept(t *testing.T) {
	var shared []string
	for _, m := range metrics.All() {
		for _, label := range []string{"namespace", "pod", "container", "job", "instance"} {
			if slices.Contains(m.Labels, label) {
				shared = append(shared, m.Name+"{"+label+"}")
			}
		}
	}
	var monitor struct {
		Spec struct {
			PodMetricsEndpoints []struct {
				HonorLabels bool `json:"honorLabels"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "podmonitor.yaml")), &monitor); err != nil {
		t.Fatal(err)
	}
	for _, e := range monitor.Spec.PodMetricsEndpoints {
		if len(shared) > 0 && !e.HonorLabels {
			t.Errorf("Prometheus renames labels of %v", shared)
		}
	}
	if len(monitor.Spec.PodMetricsEndpoints) == 0 {
		t.Error("nothing is scraped")
	}
}

func TestNames(t *testing.T) {
	for expr, want := range map[string][]string{
		`sum by (a) (rate(x_total{b="c"}[5m])) or vector(0)`:         {"x_total"},
		`histogram_quantile(0.99, sum by (le) (rate(y_bucket[5m])))`: {"y_bucket"},
		`min(z_seconds) - time() < 4 * 3600 and on (instance) q`:     {"q", "z_seconds"},
		`a:b:ratio{role="gateway"} > 10`:                             {"a:b:ratio"},
		`sum_over_time(a:b:rate5m[6h:1m]) * 60`:                      {"a:b:rate5m"},
	} {
		if got := monitoring.Names(expr); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", expr, got, want)
		}
	}
}
