package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/test/hosted/extension"
)

// account is the folder of the Pod's ServiceAccount.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

// ask sends a request to the apiserver with the credentials of the Pod, and stores the JSON of the answer in result.
// The name of its certificate is host.
func ask(host, path string, result any) error {
	ca, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(account, "token"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	answer, err := text(&http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}, "https://"+host+path, string(token))
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(answer), result)
}

// api returns the version of the apiserver at an address or a name.
func api(host string) (string, error) {
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	err := ask(host, "/version", &version)
	return version.GitVersion, err
}

// scrapePause is the time between two readings of all kubelets.
const scrapePause = 2 * time.Second

// metrics is the aggregated API that `kubectl top nodes` reads. A Pod reaches no kubelet of another network, so it
// reads what kubelets report through the apiserver, which reaches all of them. It answers from memory, as
// metrics-server does.
func metrics() http.Handler {
	var last atomic.Pointer[[]extension.Usage]
	go func() {
		for {
			if all, err := usages(); err == nil {
				last.Store(&all)
			} else {
				_, _ = fmt.Println(err)
			}
			time.Sleep(scrapePause)
		}
	}()
	return extension.NodeMetrics(func() []extension.Usage {
		if all := last.Load(); all != nil {
			return *all
		}
		return nil
	})
}

// usages returns the usage of all Nodes.
func usages() ([]extension.Usage, error) {
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	var nodes struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		} `json:"items"`
	}
	if err := ask(host, "/api/v1/nodes", &nodes); err != nil {
		return nil, err
	}
	var all []extension.Usage
	for _, node := range nodes.Items {
		one, err := usage(host, node.Metadata.Name)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// usage returns what a Node uses, as its kubelet reports it.
func usage(host, node string) (extension.Usage, error) {
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
	path := "/api/v1/nodes/" + node + "/proxy/stats/summary?only_cpu_and_memory=true"
	if err := ask(host, path, &summary); err != nil {
		return extension.Usage{}, err
	}
	if summary.Node.Name != node {
		return extension.Usage{}, fmt.Errorf("the kubelet of %q answers, not that of %s", summary.Node.Name, node)
	}
	return extension.Usage{
		Node: node, CPU: fmt.Sprintf("%dn", summary.Node.CPU.Usage),
		Memory: fmt.Sprintf("%dKi", summary.Node.Memory.Used>>10),
	}, nil
}
