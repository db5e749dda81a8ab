package xdsproxy

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

func sample(t testing.TB, names ...string) content {
	t.Helper()
	c := content{
		upstream: "a",
		kind:     relay.Clusters,
		set:      relay.Set{},
		rejected: map[string]string{"x": "v2", "gone": ""},
		why:      "it crashed",
	}
	for _, name := range names {
		body, err := anypb.New(&clusterv3.Cluster{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		c.set[name] = newResource(relay.Clusters, &discoveryv3.Resource{Name: name, Resource: body})
	}
	return c
}

func TestWrittenResourcesAreReadBack(t *testing.T) {
	data, err := sample(t, "c1", "c2").section([]byte(magic))
	if err != nil {
		t.Fatal(err)
	}
	got, whole, err := decode(data, "a", relay.Clusters)
	if err != nil || whole != len(data) || len(got.set) != 2 || got.set["c1"].Version == "" || got.why != "it crashed" ||
		len(got.rejected) != 2 ||
		got.rejected["x"] != "v2" {
		t.Errorf("read %+v: %v", got, err)
	}
	if _, _, err := decode(data, "a", relay.Listeners); err == nil {
		t.Error("read as another type")
	}
}

// TestAFileOfChangesIsReadUpToTheLastCompleteChange cuts a file with two sections of changes at every byte.
func TestAFileOfChangesIsReadUpToTheLastCompleteChange(t *testing.T) {
	data, err := sample(t, "c1", "c2").section([]byte(magic))
	if err != nil {
		t.Fatal(err)
	}
	ends, want := []int{len(data)}, [][]string{{"c1", "c2"}, {"c2", "c3"}, {"c2", "c3", "c4"}}
	gone, more := sample(t, "c3"), sample(t, "c4")
	gone.set["c1"], more.rejected, more.why = nil, nil, ""
	for _, changes := range []content{gone, more} {
		if data, err = changes.section(data); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, len(data))
	}
	for size := range len(data) + 1 {
		got, whole, err := decode(data[:size], "a", relay.Clusters)
		if (err != nil) != (size < ends[0]) {
			t.Fatalf("of %d bytes: %v", size, err)
		}
		for i, end := range ends {
			if size >= end && (i == len(ends)-1 || size < ends[i+1]) {
				if names := slices.Sorted(maps.Keys(got.set)); whole != end || !slices.Equal(names, want[i]) ||
					(len(got.rejected) > 0) != (i < 2) {
					t.Fatalf(
						"of %d bytes %d are whole, with %v and %v refused, want %d and %v", size, whole, names, got.rejected, end,
						want[i],
					)
				}
			}
		}
	}
	data[ends[1]+head] ^= 1
	if got, whole, err := decode(data, "a", relay.Clusters); err != nil || whole != ends[1] || len(got.set) != 2 {
		t.Errorf("with a bit off in the last section %d bytes are whole: %v", whole, err)
	}
}

// FuzzDecode gives the decoder arbitrary bytes, also with valid checksums. A decoded content must encode to the same
// content.
func FuzzDecode(f *testing.F) {
	for _, c := range []content{sample(f), sample(f, "c1"), sample(f, "c1", "c2")} {
		data, err := c.section([]byte(magic))
		if err != nil {
			f.Fatal(err)
		}
		body := data[len(magic)+head:]
		f.Add(body, body, false)
		f.Add(data, body, true)
	}
	f.Fuzz(func(t *testing.T, data, changes []byte, whole bool) {
		if !whole {
			data = sealed(sealed([]byte(magic), data), changes)
		}
		c, n, err := decode(data, "a", relay.Clusters)
		if err != nil {
			return
		}
		if n > len(data) {
			t.Fatalf("%d of %d bytes were read", n, len(data))
		}
		again, err := c.section([]byte(magic))
		if err != nil {
			t.Fatal(err)
		}
		other, _, err := decode(again, "a", relay.Clusters)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := other.section([]byte(magic))
		if err != nil || !bytes.Equal(again, twice) || len(other.set) != len(c.set) {
			t.Errorf("%d resources were read, %d written and read again: %v", len(c.set), len(other.set), err)
		}
	})
}

func sealed(before, body []byte) []byte {
	at := len(before)
	data := append(append(before, make([]byte, head)...), body...)
	seal(data[at:])
	return data
}
