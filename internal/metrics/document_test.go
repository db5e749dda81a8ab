package metrics_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/internal/metrics"
)

func TestDocumentMatchesTheCode(t *testing.T) {
	golden.CheckFile(t, "../../docs/metrics.md", []byte(metrics.Document()))
}

// Names are fairlead_<subsystem>_<what>[_<unit>][_total]; labels are words.
func TestNamesHaveOneForm(t *testing.T) {
	name := regexp.MustCompile(
		`^fairlead_(build|xds|channel|enrol|signing|boot|report|source|server|controller|agent|gateway|edge)_[a-z_]+$`,
	)
	var text strings.Builder
	for _, m := range metrics.All() {
		if !name.MatchString(m.Name) {
			t.Errorf("%s is no name of ours", m.Name)
		}
		if strings.HasSuffix(m.Name, "_total") != (m.Kind == metrics.Counter) {
			t.Errorf("%s: counters end with _total, and nothing else does", m.Name)
		}
		if (m.Kind == metrics.Histogram) != (len(m.Buckets) > 0) {
			t.Errorf("%s: histograms have buckets, and nothing else has", m.Name)
		}
		if m.Help == "" || len(m.Of) == 0 {
			t.Errorf("%s has no meaning or no program", m.Name)
		}
		perCluster := slices.ContainsFunc(m.Labels, func(l string) bool {
			return slices.Contains([]string{"namespace", "name", "tunnel_id", "node", "cluster"}, l)
		})
		if perCluster != m.PerCluster {
			t.Errorf("%s has labels %v, and PerCluster is %v", m.Name, m.Labels, m.PerCluster)
		}
		if m.Kind != metrics.Histogram {
			text.WriteString(
				"# HELP " + m.Name + " " + m.Help + "\n# TYPE " + m.Name + " " + string(m.Kind) + "\n" + m.Name + " 1\n",
			)
		}
	}
	problems, err := promlint.New(strings.NewReader(text.String())).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
