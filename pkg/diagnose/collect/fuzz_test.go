package collect

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"runtime"
	"strings"
	"testing"
)

// packedDump compresses a text with gzip.
func packedDump(t testing.TB, text io.Reader) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// endless is one character repeated without end.
type endless byte

// Read implements io.Reader.
func (e endless) Read(into []byte) (int, error) {
	for i := range into {
		into[i] = byte(e)
	}
	return len(into), nil
}

// allocated returns how many bytes a function allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestACompressionBombOfAnEdgeIsRejected sends dumps that decompress to eight times what an edge may send: one large
// string, and very many small entries.
func TestACompressionBombOfAnEdgeIsRejected(t *testing.T) {
	unpacked := 8 * edgeSize.bytes
	tests := map[string]struct {
		text io.Reader
		want string
	}{
		"a large string": {
			io.MultiReader(strings.NewReader(`{"configs":[{"name":"`), io.LimitReader(endless('x'), unpacked)),
			"more than 8 MiB",
		},
		"a large field": {
			io.MultiReader(strings.NewReader(`{"other":"`), io.LimitReader(endless('x'), unpacked)),
			"more than 8 MiB",
		},
		"white space": {io.LimitReader(endless(' '), unpacked), "more than 8 MiB"},
		"entries": {
			strings.NewReader(`{"configs":[{"cluster":{}}` + strings.Repeat(`,{"cluster":{}}`, 100_000) + `]}`),
			"more than 1000 resources",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			bomb := packedDump(t, tc.text)
			if len(bomb) > 1<<20+100_000 {
				t.Fatalf("the bomb has %d bytes: an xds-server would not pass it on", len(bomb))
			}
			var err error
			if n := allocated(func() { _, err = readDump(bytes.NewReader(bomb), sizeOf("edge-1")) }); n > 48<<20 {
				t.Errorf("it took %d MiB", n>>20)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestADumpOfAGatewayMayBeLarge(t *testing.T) {
	entry := `{"cluster":{"name":"c","filler":"` + strings.Repeat("x", 10_000) + `"}}`
	text := `{"configs":[` + entry + strings.Repeat(","+entry, 1_999) + `]}`
	all, err := readDump(bytes.NewReader(packedDump(t, strings.NewReader(text))), sizeOf("gateway-0"))
	if err != nil || len(all) != 2_000 {
		t.Errorf("got %d resources, %v", len(all), err)
	}
}

// FuzzDump feeds dumps of a hostile agent: what is read of one is bounded, and reading it again gives the same.
func FuzzDump(f *testing.F) {
	f.Add(
		`{"configs":[{"cluster":{"name":"c"},"version_info":"1 as x","client_status":"REQUESTED","error_state":{"details":"no"}}]}`,
		false,
	)
	f.Add(
		`{"a":1,"configs":[{"name":"l","active_state":{"listener":{}},"warming_state":{"version_info":"2"},"draining_state":{}}],"configs":[]}`,
		false,
	)
	f.Add(`{"configs":[{"name":"l","error_state":{"details":"\u0000"}}]}`, false)
	f.Add(strings.Repeat(`[`, 20_000), false)
	f.Add("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", true)
	most := size{bytes: 1 << 20, entries: 100}
	f.Fuzz(func(t *testing.T, text string, raw bool) {
		packed := []byte(text)
		if !raw {
			packed = packedDump(t, strings.NewReader(text))
		}
		all, err := readDump(bytes.NewReader(packed), most)
		if err != nil {
			return
		}
		if len(all) > most.entries {
			t.Fatalf("%d resources were read", len(all))
		}
		again, err := readDump(bytes.NewReader(packed), most)
		if err != nil || len(again) != len(all) {
			t.Errorf("read again: %d and not %d resources, %v", len(again), len(all), err)
		}
		for _, r := range all {
			if r.Config != nil && !json.Valid(r.Config) {
				t.Errorf("the resource %q is no JSON", r.Name)
			}
		}
	})
}
