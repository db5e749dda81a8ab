package page_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// tunnels creates a Cluster with its Tunnel, and writes copies of the stored objects to etcd directly. Creating 10,000
// objects by requests would take the apiserver minutes. Each copy has a revision of its own, as in Kubernetes: a watch
// continues after a revision, so of several objects with one revision it may never show some.
func (w *world) tunnels(t *testing.T, namespace string, n int) {
	t.Helper()
	const first = "shop-00000"
	w.tunnel(t, namespace, first)
	var group errgroup.Group
	group.SetLimit(16)
	for _, kind := range []string{"cluster.x-k8s.io/clusters", "fairlead.dev/tunnels"} {
		prefix := "/registry/" + kind + "/" + namespace + "/"
		model := stored(t, prefix+first)
		for i := 1; i < n; i++ {
			group.Go(func() error {
				name := fmt.Sprintf("shop-%05d", i)
				return store(t.Context(), prefix+name, renamed(model, first, name))
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

var uid = regexp.MustCompile(`"uid":"[^"]*"`)

// renamed returns a stored object with another name.
func renamed(object []byte, from, to string) []byte {
	object = uid.ReplaceAll(object, fmt.Appendf(nil, `"uid":"%s"`, uuid.NewUUID()))
	object = bytes.ReplaceAll(object, []byte(from), []byte(to))
	return bytes.ReplaceAll(object, []byte(strings.ReplaceAll(from, "-", "")), []byte(strings.ReplaceAll(to, "-", "")))
}

// stored returns the value of a key in etcd.
func stored(t *testing.T, key string) []byte {
	t.Helper()
	var answer struct{ KVs []struct{ Value []byte } }
	if err := etcd(t.Context(), "range", map[string]any{"key": []byte(key)}, &answer); err != nil || len(answer.KVs) != 1 {
		t.Fatalf("reading %s of etcd: %d found, %v", key, len(answer.KVs), err)
	}
	return answer.KVs[0].Value
}

// store writes a value to etcd.
func store(ctx context.Context, key string, value []byte) error {
	return etcd(ctx, "put", map[string][]byte{"key": []byte(key), "value": value}, &struct{}{})
}

// etcd sends a request to the JSON gateway of the management cluster's etcd.
func etcd(ctx context.Context, method string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, kube.Etcd()+"/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s: %.300s", response.Status, data)
	}
	return json.Unmarshal(data, answer)
}
