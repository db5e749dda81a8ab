package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var static embed.FS

// file is a static file.
type file struct {
	kind, tag   string
	plain, gzip []byte
}

var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// readFiles returns all files by their paths. The fleet and a Cluster share one document, whose script distinguishes
// them by the path. Both paths are at the root, so that relative links work in both.
func readFiles() (map[string]file, error) {
	files := map[string]file{}
	err := fs.WalkDir(static, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		plain, err := static.ReadFile(name)
		if err != nil {
			return err
		}
		kind := kinds[path.Ext(name)]
		if kind == "" {
			return fmt.Errorf("reading %s: no content type for such a file", name)
		}
		sum := sha256.Sum256(plain)
		f := file{
			kind:  kind,
			tag:   `"` + hex.EncodeToString(sum[:8]) + `"`,
			plain: plain,
			gzip:  zipped(plain, gzip.BestCompression),
		}
		if name == "static/index.html" {
			files["/{$}"], files["/cluster"] = f, f
			return nil
		}
		files["/"+name] = f
		return nil
	})
	return files, err
}

func (p *Page) serveFile(w http.ResponseWriter, r *http.Request) {
	f, ok := p.files[strings.TrimPrefix(r.Pattern, "GET ")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	// The browser must revalidate each time, which usually transfers nothing: after an upgrade no browser may run an old
	// script with a new server.
	w.Header().Set("Cache-Control", "no-cache")
	send(w, r, f.kind, f.tag, f.plain, f.gzip)
}

// send answers with one of two forms of a content, or reports that the reader's copy is current.
func send(w http.ResponseWriter, r *http.Request, kind, tag string, plain, zip []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Vary", "Accept-Encoding, Authorization")
	h.Set("ETag", tag)
	if strings.Contains(r.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := plain
	if body == nil || strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = zip
	}
	h.Set("Content-Length", fmt.Sprint(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

func zipped(plain []byte, level int) []byte {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		panic(err) // the level is one of ours
	}
	_, _ = z.Write(plain)
	_ = z.Close() // a buffer accepts all writes
	return b.Bytes()
}
