package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/deploy/monitoring"
	listed "github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// maxSeries is how many series one program may have in an installation with one workload cluster. Series that grow with
// the number of workload clusters would be found by their labels.
const maxSeries = 1500

// TestEveryProgramServesTheDocumentedMetrics lets a real Prometheus scrape a running installation.
func TestEveryProgramServesTheDocumentedMetrics(t *testing.T) {
	s := world.Start(t, &proof, lab.Options{
		Lean: true, WithoutWorkload: true, Gateways: 2, XDSServers: 2, LogLevel: "info", Metrics: true, AccessLog: "all",
	})
	m := s.Member(t, "bergen", nil)
	edge := s.Edge(t, lab.EdgeSpec{Name: "edge"}, m)
	w := watch(t, s, edge)
	eventually(t, w.up)
	eventually(t, m.Condition("Ready", "True"))
	// Without edges: its conditions have metrics, and a bundle has it.
	must(t, s.Management.Client.Create(t.Context(), &v1alpha1.RemoteNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: "fjord"},
		Spec:       v1alpha1.RemoteNetworkSpec{ClusterName: m.Name, CIDRs: []string{"10.21.0.0/16"}},
	}))
	eventually(t, w.answers(`fairlead_controller_network_conditions{condition="EgressReady",status="False"} == 1`))
	that(t, "every program serves exactly the documented metrics", func(t *testing.T) { w.compare(t) })
	that(t, "no series has a label of a workload cluster, an edge or a tunnel", func(t *testing.T) { w.anonymous(t, m) })
	that(t, "every query of the dashboard returns a result", func(t *testing.T) {
		queries, err := monitoring.Queries()
		must(t, err)
		for _, q := range queries {
			if err := proc.Wait(t.Context(), time.Minute, w.answers(q.Expr)); err != nil {
				t.Errorf("%s: %v", q.Panel, err)
			}
		}
		measured("dashboard_queries", float64(len(queries)))
	})
	that(t, "every rule is evaluated, and no alert fires in a healthy installation", func(t *testing.T) { w.quiet(t) })
	that(t, "status shows the round-trip times of the reverse tunnels", func(t *testing.T) {
		eventually(t, roundTrips(s, m))
	})
	that(
		t, "a support bundle contains the metrics of every program and no secret of the installation",
		func(t *testing.T) { w.gather(t, s) },
	)
	that(t, "gateways and edges log a line of JSON when a connection ends", func(t *testing.T) {
		eventually(t, accessLogged(s, m))
	})
	that(t, "an edge serves metrics of its workload clusters if enabled", func(t *testing.T) {
		second := s.Edge(t, lab.EdgeSpec{Name: "edge-2", Flags: []string{"--per-cluster-metrics"}}, m)
		w.targets["edge-2"] = s.Targets(second)[len(s.Targets())]
		eventually(t, func(ctx context.Context) error {
			families, err := w.families(ctx, "edge-2")
			if err == nil && families["fairlead_edge_apiserver_healthy"] == nil {
				err = fmt.Errorf("there is none among %d families", len(families))
			}
			return err
		})
	})
	that(t, "service levels are counted: connections, time with a tunnel, writes of status, revocations",
		func(t *testing.T) { w.serviceLevels(t, s, m) })
	that(t, "an alert is pending when no controller leads", func(t *testing.T) {
		s.Controller.Stop()
		eventually(t, w.answers(`ALERTS{alertname="FairleadNoLeader"}`))
	})
}

// up returns nil once all targets are scraped.
func (w *watcher) up(ctx context.Context) error {
	up, err := w.query(ctx, "up == 1")
	if err == nil && len(up) != len(w.targets) {
		err = fmt.Errorf("%d of %d targets are up", len(up), len(w.targets))
	}
	return err
}

// families returns the metrics of a target.
func (w *watcher) families(ctx context.Context, name string) (map[string]*dto.MetricFamily, error) {
	answer, err := w.scrape(ctx, name)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if dir := os.Getenv("METRICS_DUMP"); dir != "" {
		if err := os.WriteFile(dir+"/"+name+".txt", body, 0o600); err != nil {
			return nil, err
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(strings.NewReader(string(body)))
}

// compare compares the programs' metrics with the list. A metric may be missing on one server if it counts events that
// only happened on another.
func (w *watcher) compare(t *testing.T) {
	served := map[listed.Program]map[string]*dto.MetricFamily{}
	for name, target := range w.targets {
		families, err := w.families(t.Context(), name)
		must(t, err)
		n := 0
		for _, f := range families {
			n += len(f.GetMetric())
		}
		if n > maxSeries {
			t.Errorf("%s has %d series", name, n)
		}
		measured("series_"+target.Job, float64(n))
		program := listed.Program(target.Job)
		if served[program] == nil {
			served[program] = map[string]*dto.MetricFamily{}
		}
		maps.Copy(served[program], families)
	}
	known := map[string]listed.Metric{}
	for _, m := range slices.Concat(listed.All(), listed.Foreign()) {
		known[m.Name] = m
		for _, program := range m.Of {
			f := served[program][m.Name]
			switch {
			case m.PerCluster && f == nil:
			case m.PerCluster || f == nil:
				t.Errorf("%s of %s: served is %v, only for each workload cluster is %v", m.Name, program, f != nil, m.PerCluster)
			case !strings.EqualFold(f.GetType().String(), string(m.Kind)):
				t.Errorf("%s of %s is a %s, the list says %s", m.Name, program, f.GetType(), m.Kind)
			default:
				w.labels(t, m, f)
			}
		}
	}
	for program, families := range served {
		for name := range families {
			if m := known[name]; strings.HasPrefix(name, "fairlead_") && !slices.Contains(m.Of, program) {
				t.Errorf("%s serves %s, which is not in the list", program, name)
			}
		}
	}
}

func (*watcher) labels(t *testing.T, m listed.Metric, f *dto.MetricFamily) {
	t.Helper()
	var got []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		got = append(got, l.GetName())
	}
	if want := slices.Sorted(slices.Values(m.Labels)); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("%s has the labels %v, the list says %v", m.Name, got, want)
	}
}

// anonymous fails the test if a label contains the name of a workload cluster.
func (w *watcher) anonymous(t *testing.T, m *world.Member) {
	tunnel, err := m.Tunnel(t.Context())
	must(t, err)
	forbidden := []string{m.Name, m.Hostname, tunnel.Spec.ID}
	for _, e := range tunnel.Status.Edges {
		forbidden = append(forbidden, strings.TrimPrefix(e.NodeID, "CN="), e.NodeID)
	}
	for name := range w.targets {
		families, err := w.families(t.Context(), name)
		must(t, err)
		for _, f := range families {
			for _, series := range f.GetMetric() {
				for _, l := range series.GetLabel() {
					if slices.ContainsFunc(
						forbidden, func(word string) bool { return word != "" && strings.Contains(l.GetValue(), word) },
					) {
						t.Errorf("%s serves %s of %s=%s", name, f.GetName(), l.GetName(), l.GetValue())
					}
				}
			}
		}
	}
}

// answers returns a condition that is nil once an expression has a value.
func (w *watcher) answers(expression string) func(context.Context) error {
	return func(ctx context.Context) error {
		samples, err := w.query(ctx, expression)
		if err == nil && len(samples) == 0 {
			err = fmt.Errorf("%s has no value", expression)
		}
		return err
	}
}

// quiet fails the test unless all rules are evaluated, no alert fires, and every recording rule has a value.
func (w *watcher) quiet(t *testing.T) {
	body, err := w.get(t.Context(), "/api/v1/rules", nil)
	must(t, err)
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct {
					Name, Health, LastError, State, Type string
				}
			}
		}
	}
	must(t, json.Unmarshal(body, &answer))
	n := 0
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			n++
			if r.Health != "ok" || r.State == "firing" {
				t.Errorf("%s is %s, %s: %s", r.Name, r.Health, r.State, r.LastError)
			}
			if r.Type == "recording" {
				if err := proc.Wait(t.Context(), time.Minute, w.answers(r.Name)); err != nil {
					t.Error(err)
				}
			}
		}
	}
	groups, err := monitoring.Rules()
	must(t, err)
	for _, g := range groups {
		n -= len(g.Rules)
	}
	if n != 0 {
		t.Errorf("Prometheus has %d rules more than the file", n)
	}
}

// serviceLevels revokes one of the edges of a workload cluster. That, clients and status must appear in the metrics of
// docs/slo.md.
func (w *watcher) serviceLevels(t *testing.T, s *world.World, m *world.Member) {
	t.Helper()
	eventually(t, m.Works)
	eventually(t, w.answers(`count(sum by (route) (fairlead_gateway_clients_total{result="reached"}) > 0) == 2`))
	eventually(t, w.answers(`count(fairlead_gateway_expected_tunnel_seconds_total > 0) == 2`))
	eventually(t, w.answers(`sum(fairlead_controller_status_delay_seconds_count{urgency="flipped"}) > 0`))
	eventually(t, w.answers(`max(fairlead_controller_report_age_seconds) == 0`))
	tunnel, err := m.Tunnel(t.Context())
	must(t, err)
	revoked := strings.TrimPrefix(tunnel.Status.Edges[0].NodeID, "CN=")
	out, err := s.Exec(t.Context(), "edge", "revoke", "-n", m.Namespace, "--cluster", m.Name, revoked, s.Inspection())
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, w.answers(`sum(fairlead_gateway_cut_seconds_count) > 0`))
	eventually(t, w.answers(`sum(fairlead_controller_revocation_seconds_count) == 1`))
	for what, query := range map[string]string{
		"cut_seconds":        `sum(fairlead_gateway_cut_seconds_sum) / sum(fairlead_gateway_cut_seconds_count)`,
		"revocation_seconds": `sum(fairlead_controller_revocation_seconds_sum)`,
	} {
		samples, err := w.query(t.Context(), query)
		must(t, err)
		var seconds float64
		if len(samples) != 1 {
			t.Fatalf("%s: %v", query, samples)
		}
		if _, err := fmt.Sscan(fmt.Sprint(samples[0].Value[1]), &seconds); err != nil || seconds <= 0 || seconds > 60 {
			t.Errorf("%s is %g s, %v", what, seconds, err)
		}
		measured(what, seconds)
	}
}
