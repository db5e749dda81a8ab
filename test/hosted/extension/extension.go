// Package extension has servers that extend an apiserver: a webhook, and the aggregated API that `kubectl top nodes`
// reads. Input: a reason, or the usage of Nodes. Output: handlers. It imports only the standard library, so that Pods
// can run it from a small image.
package extension

import (
	"encoding/json"
	"io"
	"net/http"
	"time"
)

// Deny is a webhook that denies everything, with a reason.
func Deny(reason string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Request struct {
				UID string `json:"uid"`
			} `json:"request"`
		}
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, map[string]any{
			"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": map[string]any{
				"uid": review.Request.UID, "allowed": false, "status": map[string]any{"message": reason},
			},
		})
	})
}

// Usage is what a Node uses, as quantities.
type Usage struct {
	Node, CPU, Memory string
}

// NodeMetrics is the aggregated API metrics.k8s.io with the usage of Nodes. While usages returns nil, it answers that
// it is not available.
func NodeMetrics(usages func() []Usage) http.Handler {
	const version = "metrics.k8s.io/v1beta1"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/"+version, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": []any{map[string]any{
				"name": "nodes", "singularName": "", "namespaced": false, "kind": "NodeMetrics", "verbs": []string{"get", "list"},
			}},
		})
	})
	mux.HandleFunc("GET /apis/"+version+"/nodes", func(w http.ResponseWriter, _ *http.Request) {
		all := usages()
		if all == nil {
			http.Error(w, "nothing has been read yet", http.StatusServiceUnavailable)
			return
		}
		var items []any
		for _, u := range all {
			items = append(items, map[string]any{
				"metadata": map[string]any{"name": u.Node}, "timestamp": time.Now().UTC().Format(time.RFC3339), "window": "10s",
				"usage": map[string]any{"cpu": u.CPU, "memory": u.Memory},
			})
		}
		answer(w, map[string]any{
			"kind": "NodeMetricsList", "apiVersion": version, "metadata": map[string]any{}, "items": items,
		})
	})
	return mux
}

func answer(w http.ResponseWriter, object map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}
