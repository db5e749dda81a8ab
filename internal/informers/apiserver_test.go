package informers

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/kubetest"
)

func TestAnInformerThatHangsIsFound(t *testing.T) {
	w := newWorld(t, short)
	w.run(t)
	changed, deleted := w.create(t, "changed"), w.create(t, "deleted")
	w.wellFor(t, 2*short, "quiet objects")
	for range 20 {
		w.change(t, changed)
		w.wellFor(t, short/10, "an object that changes")
	}
	w.awaitVersion(t, changed)

	w.hold()
	w.wellFor(t, 2*short, "a hanging watch without events")
	w.change(t, changed)
	if err := w.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	w.wellFor(t, short*9/10, "before the limit")
	const stuck = "kind Cluster is stuck"
	for _, name := range []string{"of " + w.namespace + "/changed, and the cache has had version", "2 objects differ"} {
		kubetest.Eventually(t, name, func() error {
			err := w.beats.Stuck(time.Now())
			if text := fmt.Sprint(err); !strings.Contains(text, name) || !strings.Contains(text, stuck) {
				return fmt.Errorf("got %s", text)
			}
			return nil
		})
	}

	w.release()
	w.awaitVersion(t, changed)
	kubetest.Eventually(t, "recovery", func() error { return w.beats.Stuck(time.Now()) })
}

func TestAnOutageOfTheApiserverIsNotAStuckInformer(t *testing.T) {
	w := newWorld(t, long)
	w.run(t)
	cluster := w.create(t, "a")
	w.hold()
	w.change(t, cluster)
	w.wellFor(t, long*7/10, "while the change is in flight")
	w.cut()
	w.release()
	w.wellFor(t, long*4/10, "during the outage")
	w.restore()
	w.wellFor(t, long*8/10, "after the outage")
	w.awaitVersion(t, cluster)
	w.wellFor(t, short, "when the cache has the change")
}

func TestEachPageIsComparedEvenIfTheListExpires(t *testing.T) {
	w := newWorld(t, short)
	w.check.size = 2
	for i := range 7 {
		if err := w.Create(t.Context(), kubetest.Cluster(w.namespace, fmt.Sprintf("c%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	k := w.check.kinds[0]
	next := func(want ...string) {
		t.Helper()
		p, err := w.check.page(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.versions) != len(want) {
			t.Fatalf("got %v, want %v", p.versions, want)
		}
		for _, name := range want {
			if p.versions[w.namespace+"/"+name] == "" || !p.covers(w.namespace+"/"+name) {
				t.Errorf("got %v after %q to %q, want %v", p.versions, p.after, p.last, want)
			}
		}
	}
	next("c0", "c1")
	next("c2", "c3")
	w.expire(t, k.token)
	next("c4", "c5")
	next("c6")
	next("c0", "c1")
	k.token = "no token of an apiserver"
	next("c0", "c1")
}

// expire makes etcd and the apiserver discard all old versions, so that the token of a list becomes invalid.
func (w *world) expire(t *testing.T, token string) {
	t.Helper()
	put := func(value string) string {
		// The apiserver reads from this key up to which revision etcd has been compacted.
		encode := base64.StdEncoding.EncodeToString
		answer := post(
			t,
			"/v3/kv/put",
			`{"key": "`+encode([]byte("compact_rev_key"))+`", "value": "`+encode([]byte(value))+`"}`,
		)
		_, revision, _ := strings.Cut(answer, `"revision":"`)
		revision, _, _ = strings.Cut(revision, `"`)
		return revision
	}
	revision := put("0")
	put(revision)
	post(t, "/v3/kv/compaction", `{"revision": "`+revision+`", "physical": true}`)
	// the apiserver reads the key only once in a while
	eventually.True(t, 3*time.Minute, "expiry of the list", func() error {
		err := w.List(t.Context(), &clusterv1.ClusterList{}, client.Limit(w.check.size), client.Continue(token))
		if !apierrors.IsResourceExpired(err) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
}

// post sends a request to etcd.
func post(t *testing.T, path, body string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.Etcd()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", path, answer, err)
	}
	return string(answer)
}
