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

// Families returns the statistics whose names match a regular expression.
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
