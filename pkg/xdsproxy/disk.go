package xdsproxy

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
)

// File extensions, after the names of the upstream and of the type. Each type has two generations.
const (
	acceptedEnding  = ".cache" // what Envoy accepted last
	goodEnding      = ".good"  // what Envoy has run with
	asideEnding     = ".corrupt"
	temporaryEnding = ".tmp"
)

// maxFile is much larger than any cache. To read a larger file would use memory that Envoy needs.
const maxFile = 256 << 20

// file returns the path of one generation of a type of an upstream.
func (r *Proxy) file(upstream string, k kind, ending string) string {
	return filepath.Join(r.dir, upstream+"."+k.String()+ending)
}

// load creates contributions from the files in the folder. It creates the folder if it does not exist.
func (r *Proxy) load() error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		for k := range kinds {
			for _, ending := range []string{acceptedEnding, goodEnding} {
				name, ok := strings.CutSuffix(entry.Name(), "."+k.String()+ending)
				if ok && namePattern.MatchString(name) {
					r.loadFile(name, k, ending)
				}
			}
		}
	}
	for _, c := range r.sorted() {
		c.restore()
		r.scoped = r.scoped || c.shares[scopes].known
	}
	r.loadTrials()
	return nil
}

// loadFile reads one generation. It moves an unusable file aside.
func (r *Proxy) loadFile(upstream string, k kind, ending string) {
	path := r.file(upstream, k, ending)
	data, err := read(path)
	var got content
	whole := 0
	if err == nil {
		got, whole, err = decode(data, upstream, k)
	}
	if err != nil {
		r.putAside(path, err)
		return
	}
	c := r.contribution(upstream)
	s := c.shares[k]
	torn := whole < len(data)
	if torn {
		r.log.Info("last change in the cache of resources is incomplete, ignoring it", "path", path)
	}
	if ending == goodEnding {
		c.good[k], s.goodUnwritten = got.set, torn
		return
	}
	s.unwritten = torn
	s.accepted, s.known, s.whole = got.set, true, true
	if len(got.rejected) > 0 {
		g := &group{why: detailed(newStatus(codes.Aborted, got.why), k, got.rejected, nil), afterCrash: true}
		for name, version := range got.rejected {
			g.names = append(g.names, name)
			s.rejected[name] = &rejection{group: g, version: version, instead: got.set[name]}
		}
	}
}

// read reads a regular file of limited size.
func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, errForeign
	}
	return os.ReadFile(path)
}

// putAside renames an unusable file and keeps it for inspection. Only the last one of each name is kept.
func (r *Proxy) putAside(path string, reason error) {
	if err := os.Rename(path, path+asideEnding); err != nil {
		reason = errors.Join(reason, err)
	}
	r.log.Error("cache of resources is not usable, renamed it", "path", path+asideEnding, "error", reason)
}

// restore offers Envoy what was loaded.
func (c *contribution) restore() {
	for k, s := range c.shares {
		if !s.known && c.good[k] != nil {
			// the newer generation was not usable
			s.accepted, s.known, s.whole, s.unwritten = maps.Clone(c.good[k]), true, true, true
		}
		c.loaded = c.loaded || s.known
		for name, res := range s.accepted {
			if owner := s.owners()[name]; owner != nil {
				c.proxy.log.Error(
					"ignoring cached resource, another xds-server has one of this name", "upstream", c.name, "name", name,
				)
				delete(s.accepted, name)
				continue
			}
			s.offered[name] = res
			s.owners()[name] = s
			s.place(name, res)
		}
		c.unproven = c.unproven || len(differing(c.good[k], s.accepted)) > 0
	}
	c.proxy.log.Info("loaded the resources that Envoy accepted last", "upstream", c.name,
		"clusters", len(c.shares[clusters].accepted), "scopes", len(c.shares[scopes].accepted),
		"listeners", len(c.shares[listeners].accepted))
}

// erase removes the files of an upstream. The caller holds the disk lock.
func (r *Proxy) erase(upstream string) {
	for k := range kinds {
		for _, ending := range []string{acceptedEnding, goodEnding} {
			for _, more := range []string{"", asideEnding, temporaryEnding} {
				if err := os.Remove(r.file(upstream, k, ending) + more); err != nil && !errors.Is(err, fs.ErrNotExist) {
					r.log.Error("cannot remove cache of resources", "upstream", upstream, "error", err)
				}
			}
		}
	}
}
