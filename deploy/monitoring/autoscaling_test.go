package monitoring_test

import (
	"os"
	"strings"
	"testing"
	"text/template"

	"github.com/go-logr/logr"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/kubetest"
)

var server = kubetest.Server{}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(server.Run(m))
}

func autoscaler(t *testing.T) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	hpa := &autoscalingv2.HorizontalPodAutoscaler{}
	if err := yaml.UnmarshalStrict([]byte(read(t, "autoscaling/horizontalpodautoscaler.yaml")), hpa); err != nil {
		t.Fatal(err)
	}
	return hpa
}

// TestTheAPIServerAcceptsTheAutoscaler sends the example to a real apiserver, which validates it.
func TestTheAPIServerAcceptsTheAutoscaler(t *testing.T) {
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	hpa := autoscaler(t)
	hpa.Namespace = kubetest.NewNamespace(t, admin)
	if err := admin.Create(t.Context(), hpa, client.FieldValidation("Strict")); err != nil {
		t.Fatal(err)
	}
	invalid := autoscaler(t)
	invalid.Namespace, invalid.Name = hpa.Namespace, "other"
	invalid.Spec.Metrics[0].Pods.Target.AverageValue = nil
	if err := admin.Create(t.Context(), invalid, client.FieldValidation("Strict")); err == nil {
		t.Error("it accepts an autoscaler without a target value, so this test shows nothing")
	}
}

func TestTheAutoscalerScalesTheGateways(t *testing.T) {
	hpa := autoscaler(t)
	target := hpa.Spec.ScaleTargetRef
	found := false
	for _, o := range kubetest.KustomizeUser(t, []string{"kubernetes"}, nil, "") {
		found = found || o.GetAPIVersion() == target.APIVersion && o.GetKind() == target.Kind && o.GetName() == target.Name &&
			o.GetNamespace() == hpa.Namespace
	}
	if !found {
		t.Errorf("deploy/kubernetes has no %s %s in %s", target.Kind, target.Name, hpa.Namespace)
	}
	// A gateway is full at 1, so the target must leave room for the clients of a gateway that ends.
	if v := hpa.Spec.Metrics[0].Pods.Target.AverageValue.AsApproximateFloat64(); v <= 0 || v > 0.8 {
		t.Errorf("the target is %v", v)
	}
}

// TestTheAdapterServesTheMetricOfTheAutoscaler fills the templates of the rule for prometheus-adapter as that does:
// with the delimiters << and >>.
func TestTheAdapterServesTheMetricOfTheAutoscaler(t *testing.T) {
	var values struct {
		Rules struct {
			Default bool `json:"default"`
			Custom  []struct {
				SeriesQuery string `json:"seriesQuery"`
				Resources   struct {
					Overrides map[string]struct {
						Resource string `json:"resource"`
					} `json:"overrides"`
				} `json:"resources"`
				Name         struct{ Matches, As string } `json:"name"`
				MetricsQuery string                       `json:"metricsQuery"`
			} `json:"custom"`
		} `json:"rules"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, "autoscaling/prometheus-adapter.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	if len(values.Rules.Custom) != 1 {
		t.Fatalf("%d rules", len(values.Rules.Custom))
	}
	rule, metric := values.Rules.Custom[0], autoscaler(t).Spec.Metrics[0].Pods.Metric.Name
	if rule.Name.As != metric {
		t.Errorf("the adapter serves %q, the autoscaler reads %q", rule.Name.As, metric)
	}
	for _, resource := range []string{"namespace", "pod"} {
		if rule.Resources.Overrides[resource].Resource != resource {
			t.Errorf("the label %s is not mapped", resource)
		}
	}
	const series = "fairlead:gateway_full:ratio"
	if !strings.Contains(rule.SeriesQuery, `"`+series+`"`) {
		t.Errorf("the series are %s", rule.SeriesQuery)
	}
	recorded := false
	for _, r := range rules(t) {
		recorded = recorded || r.Record == series
	}
	if !recorded {
		t.Errorf("rules.yaml does not record %s", series)
	}
	query, err := template.New("").Delims("<<", ">>").Parse(rule.MetricsQuery)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := query.Execute(&text, map[string]string{
		"GroupBy": "pod", "Series": series, "LabelMatchers": `namespace="fairlead-system",pod=~"gateway-0|gateway-1"`,
	}); err != nil {
		t.Fatal(err)
	}
	want := `max by (pod) (` + series + `{namespace="fairlead-system",pod=~"gateway-0|gateway-1"})`
	if text.String() != want {
		t.Errorf("the query is %s, want %s", text.String(), want)
	}
}
