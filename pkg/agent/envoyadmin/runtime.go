package envoyadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// maxRuntime exceeds the size of a runtime with the limits of 50,000 workload clusters.
const maxRuntime = 64 << 20

// Overrides returns the values of Envoy's runtime that were set through the admin interface, by key. They are in the
// last layer: docs.envoyproxy.io, operations/runtime_admin. Without any it returns an empty map.
func (a Client) Overrides(ctx context.Context) (map[string]string, error) {
	body, err := a.ask(ctx, http.MethodGet, "/runtime", maxRuntime)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Entries map[string]struct {
			LayerValues []string `json:"layer_values"`
		} `json:"entries"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("reading Envoy's runtime: %w", err)
	}
	set := map[string]string{}
	for key, entry := range answer.Entries {
		if n := len(entry.LayerValues); n > 0 && entry.LayerValues[n-1] != "" {
			set[key] = entry.LayerValues[n-1]
		}
	}
	return set, nil
}
