package relay

import (
	"bytes"
	"crypto/sha256"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

func sample(t testing.TB, names ...string) content {
	t.Helper()
	c := content{upstream: "a", kind: clusters, set: set{}, refused: map[string]string{"x": "v2", "gone": ""}, why: "it crashed"}
	for _, name := range names {
		body, err := anypb.New(&clusterv3.Cluster{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		c.set[name] = newResource(&discoveryv3.Resource{Name: name, Resource: body})
	}
	return c
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	data, err := sample(t, "c1", "c2").encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(data, "a", clusters)
	if err != nil || len(got.set) != 2 || got.set["c1"].version() == "" || got.why != "it crashed" || len(got.refused) != 2 || got.refused["x"] != "v2" {
		t.Errorf("read %+v: %v", got, err)
	}
	if _, err := decode(data, "a", listeners); err == nil {
		t.Error("read as another type")
	}
}

// FuzzDecode gives the reader of files anything, also with a checksum that fits. What it takes must be what it would write.
func FuzzDecode(f *testing.F) {
	for _, c := range []content{sample(f), sample(f, "c1"), sample(f, "c1", "c2")} {
		data, err := c.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[len(magic)+sha256.Size:], false)
		f.Add(data, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, whole bool) {
		if !whole {
			sum := sha256.Sum256(data)
			data = append(append([]byte(magic), sum[:]...), data...)
		}
		c, err := decode(data, "a", clusters)
		if err != nil {
			return
		}
		again, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		other, err := decode(again, "a", clusters)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := other.encode(); err != nil || !bytes.Equal(again, twice) || len(other.set) != len(c.set) {
			t.Errorf("%d resources were read, %d written and read again: %v", len(c.set), len(other.set), err)
		}
	})
}
