// Command guest is the program of Pods in the proof of networks. It serves HTTP, prints its environment, asks the
// apiserver of its Cluster, decides as a webhook, or serves the metrics of all Nodes as an aggregated API.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("want serve ADDRESS, env NAME, api HOST, webhook REASON or metrics ADDRESS")
	}
	switch value := args[1]; args[0] {
	case "serve":
		_, _ = fmt.Println("serving on", os.Getenv("NODE"))
		server := &http.Server{Addr: value, ReadHeaderTimeout: requestTime, Handler: http.HandlerFunc(answer)}
		return server.ListenAndServe()
	case "env":
		_, err := fmt.Println(os.Getenv(value))
		return err
	case "api":
		return api(value)
	case "webhook":
		return serveTLS(":9443", deny(value))
	case "metrics":
		return serveTLS(value, metrics())
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// requestTime bounds one request.
const requestTime = 5 * time.Second

// answer answers with the Node on which the Pod is.
func answer(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, os.Getenv("NODE")) }

// account is the folder of the Pod's ServiceAccount.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

// get sends a request to the apiserver with the credentials of the Pod. The name of its certificate is host.
func get(ctx context.Context, host, path string) ([]byte, error) {
	ca, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(filepath.Join(account, "token"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.200s", path, response.Status, data)
	}
	return data, err
}

// api prints the version of the apiserver at an address or a name.
func api(host string) error {
	data, err := get(context.Background(), host, "/version")
	if err != nil {
		return err
	}
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return err
	}
	_, err = fmt.Println(version.GitVersion)
	return err
}

// serveTLS serves with the certificate in /tls.
func serveTLS(address string, handler http.Handler) error {
	server := &http.Server{Addr: address, ReadHeaderTimeout: requestTime, Handler: handler}
	return server.ListenAndServeTLS("/tls/tls.crt", "/tls/tls.key")
}

// deny is a webhook that denies everything, with a reason.
func deny(reason string) http.Handler {
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
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": map[string]any{
				"uid": review.Request.UID, "allowed": false, "status": map[string]any{"message": reason},
			},
		})
	})
}

// scrapePause is the time between two readings of all kubelets.
const scrapePause = 2 * time.Second

// scrape reads the metrics of all Nodes again and again. It stores what it has read last.
func scrape(last *atomic.Value) {
	for {
		items, err := usages(context.Background())
		if err == nil {
			last.Store(items)
		} else {
			_, _ = fmt.Println(err)
		}
		time.Sleep(scrapePause)
	}
}

// metrics is the aggregated API that `kubectl top nodes` reads. A Pod reaches no kubelet of another network, so it
// reads what kubelets report through the apiserver, which reaches all of them. It answers from memory, as
// metrics-server does.
func metrics() http.Handler {
	var last atomic.Value
	go scrape(&last)
	const group = "/apis/metrics.k8s.io/v1beta1"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+group, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metrics.k8s.io/v1beta1",`+
			`"resources":[{"name":"nodes","singularName":"","namespaced":false,"kind":"NodeMetrics","verbs":["get","list"]}]}`)
	})
	mux.HandleFunc("GET "+group+"/nodes", func(w http.ResponseWriter, _ *http.Request) {
		items := last.Load()
		if items == nil {
			http.Error(w, "nothing has been read yet", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": map[string]any{}, "items": items,
		})
	})
	return mux
}

// usages returns the metrics of all Nodes.
func usages(ctx context.Context) ([]any, error) {
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	data, err := get(ctx, host, "/api/v1/nodes")
	if err != nil {
		return nil, err
	}
	var nodes struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		} `json:"items"`
	}
	if err := json.Unmarshal(data, &nodes); err != nil {
		return nil, err
	}
	var items []any
	for _, node := range nodes.Items {
		item, err := usage(ctx, host, node.Metadata.Name)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

// usage returns the metrics of a Node, as its kubelet reports them.
func usage(ctx context.Context, host, node string) (any, error) {
	data, err := get(ctx, host, "/api/v1/nodes/"+node+"/proxy/stats/summary?only_cpu_and_memory=true")
	if err != nil {
		return nil, err
	}
	var summary struct {
		Node struct {
			Name string `json:"nodeName"`
			CPU  struct {
				Usage uint64 `json:"usageNanoCores"`
			} `json:"cpu"`
			Memory struct {
				Used uint64 `json:"workingSetBytes"`
			} `json:"memory"`
		} `json:"node"`
	}
	if err := json.Unmarshal(data, &summary); err != nil {
		return nil, err
	}
	if summary.Node.Name != node {
		return nil, fmt.Errorf("the kubelet of %q answers, not that of %s", summary.Node.Name, node)
	}
	return map[string]any{
		"metadata": map[string]any{"name": node}, "timestamp": time.Now().UTC().Format(time.RFC3339), "window": "10s",
		"usage": map[string]any{
			"cpu": fmt.Sprintf("%dn", summary.Node.CPU.Usage), "memory": fmt.Sprintf("%dKi", summary.Node.Memory.Used>>10),
		},
	}, nil
}
