package envoyadmin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxStats bounds the size of Envoy's statistics that is read.
const maxStats = 8 << 20

// Families returns the statistics whose names match a regular expression, by their names in Prometheus. It uses that
// format because Envoy's others visit each statistic's scope three times, and each Envoy cluster has several scopes:
// with 10,000 of them that takes Envoy's main thread 66 ms, and this one 4 ms.
func (a Client) Families(ctx context.Context, names string) (map[string]*dto.MetricFamily, error) {
	response, err := a.open(ctx, http.MethodGet, "/stats/prometheus?filter="+url.QueryEscape(names))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxStats))
	if err != nil {
		return nil, fmt.Errorf("querying Envoy for its statistics: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("querying Envoy for its statistics: status %d: %.100s", response.StatusCode, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("reading Envoy's statistics: %w", err)
	}
	return families, nil
}

// Sums returns the sums of the gauges and counters whose names match a regular expression, by their names in
// Prometheus.
func (a Client) Sums(ctx context.Context, names string) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	families, err := a.Families(ctx, names)
	if err != nil {
		return nil, err
	}
	sums := make(map[string]int, len(families))
	for name, family := range families {
		for _, m := range family.GetMetric() {
			sums[name] += int(m.GetGauge().GetValue() + m.GetCounter().GetValue())
		}
	}
	return sums, nil
}

// Sum returns the sum of all gauges and counters whose names match a regular expression.
func (a Client) Sum(ctx context.Context, names string) (total int, err error) {
	sums, err := a.Sums(ctx, names)
	for _, n := range sums {
		total += n
	}
	return total, err
}
