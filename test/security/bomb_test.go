package security

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"
)

// packed returns a gzip stream that unpacks to many times its size.
func packed(t *testing.T, unpacked int64) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	must(t, err)
	_, err = io.WriteString(z, `{"configs":[{"name":"`)
	must(t, err)
	block := bytes.Repeat([]byte("x"), 1<<20)
	for range unpacked >> 20 {
		_, err = z.Write(block)
		must(t, err)
	}
	must(t, z.Close())
	return b.Bytes()
}

// chunks splits data into parts of a given size.
func chunks(data []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(data) > 0 {
			n := min(size, len(data))
			if !yield(data[:n]) {
				return
			}
			data = data[n:]
		}
	}
}
