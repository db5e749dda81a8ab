package controller

import (
	"io"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
)

// metric returns the sum of an apiserver metric over all series that have the given labels.
func (f *fleet) metric(name string, labels ...string) (sum float64) {
	f.t.Helper()
	rt, err := rest.HTTPClientFor(f.config)
	if err != nil {
		f.t.Fatal(err)
	}
	response, err := rt.Get(strings.TrimSuffix(f.config.Host, "/") + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		f.t.Fatalf("%s: %v", response.Status, err)
	}
series:
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue series
			}
		}
		fields := strings.Fields(rest)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			f.t.Fatal(err)
		}
		sum += value
	}
	return sum
}

// written returns how many writes of status the apiserver has counted.
func (f *fleet) written() float64 {
	f.t.Helper()
	return f.metric("apiserver_request_total", `verb="PATCH"`, `subresource="status"`, `resource="tunnels"`) +
		f.metric("apiserver_request_total", `verb="APPLY"`, `subresource="status"`, `resource="clusters"`) +
		f.metric("apiserver_request_total", `verb="PATCH"`, `subresource="status"`, `resource="clusters"`)
}
