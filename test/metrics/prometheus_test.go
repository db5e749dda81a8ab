package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// scrapeEvery is short, so that rates are available soon. The product's alerts have their own durations.
const scrapeEvery = "1s"

// watcher is a real Prometheus that scrapes an installation.
type watcher struct {
	url     string
	targets map[string]lab.Target // by host, as in Prometheus' configuration
}

// watch starts Prometheus with the deployed rules. It scrapes through a proxy, because the targets are in network
// namespaces.
func watch(t *testing.T, s *world.World, edges ...*lab.Agent) *watcher {
	t.Helper()
	w := &watcher{targets: map[string]lab.Target{}}
	proxy := w.serveProxy(t)
	dir := t.TempDir()
	jobs := map[string][]string{}
	for _, target := range s.Targets(edges...) {
		w.targets[target.Name] = target
		jobs[target.Job] = append(jobs[target.Job], target.Name+":80")
	}
	must(
		t,
		os.WriteFile(
			filepath.Join(dir, "prometheus.yml"),
			w.config(t, jobs, proxy, []string{filepath.Join(s.Root(), "deploy", "monitoring", "rules.yaml")}), 0o600,
		),
	)
	at := freeport.Address(t)
	w.url = "http://" + at
	process, err := proc.Start(proc.Spec{
		Name: "prometheus", Program: filepath.Join(s.Root(), "bin", "prometheus"), Log: s.LogFile("prometheus"), Dir: dir,
		Args: []string{
			"--config.file=prometheus.yml",
			"--storage.tsdb.path=data",
			"--web.listen-address=" + at,
			"--log.level=warn",
		},
	})
	must(t, err)
	t.Cleanup(process.Stop)
	must(
		t,
		process.WaitReady(
			t.Context(), time.Minute, func(ctx context.Context) error { _, err := w.get(ctx, "/-/ready", nil); return err },
		),
	)
	return w
}

func (w *watcher) config(t *testing.T, jobs map[string][]string, proxy string, rules []string) []byte {
	t.Helper()
	type object = map[string]any
	var scrapes []object
	for job, hosts := range jobs {
		scrapes = append(scrapes, object{
			"job_name": job, "proxy_url": proxy, "static_configs": []object{{"targets": hosts}},
			"relabel_configs": []object{
				{"source_labels": []string{"__address__"}, "regex": "(.*):80", "target_label": "instance", "replacement": "$1"},
			},
		})
	}
	out, err := yaml.Marshal(object{
		"global":         object{"scrape_interval": scrapeEvery, "evaluation_interval": scrapeEvery},
		"rule_files":     rules,
		"scrape_configs": scrapes,
	})
	must(t, err)
	return out
}

// serveProxy serves an HTTP proxy that connects to each target in its network namespace, and returns the proxy's URL.
func (w *watcher) serveProxy(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
			name, _, _ := strings.Cut(in.URL.Host, ":")
			w.relay(in.Context(), out, name)
		}),
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String()
}

// relay answers with the response of a target.
func (w *watcher) relay(ctx context.Context, out http.ResponseWriter, name string) {
	answer, err := w.scrape(ctx, name)
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	out.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	out.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(out, answer.Body)
}

// scrape sends the same request to a target as Prometheus.
func (w *watcher) scrape(ctx context.Context, name string) (*http.Response, error) {
	target, ok := w.targets[name]
	if !ok {
		return nil, fmt.Errorf("there is no target %q", name)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target.Address+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	return (&http.Transport{DialContext: target.Namespace.DialContext, DisableKeepAlives: true}).RoundTrip(request)
}

// get sends a request to Prometheus.
func (w *watcher) get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+path+"?"+query.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("asking Prometheus for %s: status %d: %s", path, answer.StatusCode, body)
	}
	return body, err
}

// sample is one value of an answer.
type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

// query returns the current value of an expression.
func (w *watcher) query(ctx context.Context, expression string) ([]sample, error) {
	body, err := w.get(ctx, "/api/v1/query", url.Values{"query": {expression}})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Result json.RawMessage `json:"result"`
			Type   string          `json:"resultType"`
		} `json:"data"`
		Warnings []string `json:"warnings"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if answer.Data.Type != "vector" {
		return nil, errors.New("the answer is no vector")
	}
	var samples []sample
	return samples, json.Unmarshal(answer.Data.Result, &samples)
}
