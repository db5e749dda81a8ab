package xdsproxy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

// endings are the file extensions of the generations, after the names of the upstream and of the type.
var endings = [relay.Generations]string{relay.Accepted: ".cache", relay.Good: ".good"}

const (
	asideEnding     = ".corrupt"
	temporaryEnding = ".tmp"
	// trialsFile is not the name of a generation, whatever the name of an upstream is.
	trialsFile = "trials"
	// trialsMagic begins the file. Its number is the version of the format.
	trialsMagic = "fairlead trials 1\n"
	// maxFile is much larger than any cache: that of 100,000 Envoy clusters has 200 MB, and up to 340 MB with changes. To
	// read a larger file would use memory that Envoy needs.
	maxFile = 1 << 30
)

// file returns the path of one generation of a type of an upstream.
func (p *Proxy) file(upstream string, k relay.Kind, g relay.Generation) string {
	return filepath.Join(p.dir, upstream+"."+k.String()+endings[g])
}

// load reads the files in the folder. It creates the folder if it does not exist.
func (p *Proxy) load() (restored relay.Restored, err error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return restored, err
	}
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return restored, err
	}
	for _, entry := range entries {
		for k := range relay.Kinds {
			for g := range relay.Generations {
				name, ok := strings.CutSuffix(entry.Name(), "."+k.String()+endings[g])
				if !ok || !namePattern.MatchString(name) {
					continue
				}
				if stored, err := p.loadFile(name, k, g); err != nil {
					p.putAside(p.file(name, k, g), err)
				} else {
					restored.Files = append(restored.Files, stored)
				}
			}
		}
	}
	restored.Trials, restored.Unusable = p.loadTrials()
	return restored, nil
}

func (p *Proxy) loadFile(upstream string, k relay.Kind, g relay.Generation) (relay.Stored, error) {
	path := p.file(upstream, k, g)
	data, err := read(path)
	if err != nil {
		return relay.Stored{}, err
	}
	c, whole, err := decode(data, upstream, k)
	if err != nil {
		return relay.Stored{}, err
	}
	torn := whole < len(data)
	if torn {
		p.log.Info("last change in the cache of resources is incomplete, ignoring it", "path", path)
	}
	return relay.Stored{Upstream: upstream, Kind: k, Generation: g, Set: c.set, Rejected: c.rejection(), Torn: torn}, nil
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
func (p *Proxy) putAside(path string, reason error) {
	if err := os.Rename(path, path+asideEnding); err != nil {
		reason = errors.Join(reason, err)
	}
	p.log.Error("cache of resources is not usable, renamed it", "path", path+asideEnding, "error", reason)
}

// flush executes the writes and removals of files, in order.
func (p *Proxy) flush() {
	p.disk.Lock()
	defer p.disk.Unlock()
	for {
		p.mu.Lock()
		var next relay.Effect
		if len(p.files) > 0 {
			next, p.files = p.files[0], p.files[1:]
		}
		p.mu.Unlock()
		switch e := next.(type) {
		case relay.Write:
			p.apply(p.write(e))
		case relay.Erase:
			p.erase(e.Upstream)
		default:
			return
		}
	}
}

// write writes files of an upstream.
func (p *Proxy) write(w relay.Write) relay.Written {
	written := relay.Written{Write: w}
	for _, out := range w.Files {
		size, err := writeFile(p.file(w.Upstream, out.Kind, out.Generation), contentOf(w.Upstream, out), out.Whole)
		if err != nil {
			size, written.Err = -1, fmt.Sprintf("writing cache of resources: %v", err)
		}
		written.Sizes = append(written.Sizes, size)
	}
	return written
}

// writeFile writes a whole content through a temporary file of a fixed name, so that a crash leaves at most one, or
// appends a section of changes. It returns the number of bytes.
func writeFile(path string, c content, whole bool) (int64, error) {
	var begin []byte
	if whole {
		begin = []byte(magic)
	}
	data, err := c.section(begin)
	if err == nil && whole {
		err = disk.ReplaceBy(path+temporaryEnding, path, data)
	} else if err == nil {
		err = add(path, data)
	}
	return int64(len(data)), err
}

// add appends to an existing file and syncs it to disk.
func add(path string, data []byte) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// erase removes the files of an upstream.
func (p *Proxy) erase(upstream string) {
	for k := range relay.Kinds {
		for g := range relay.Generations {
			for _, more := range []string{"", asideEnding, temporaryEnding} {
				if err := os.Remove(p.file(upstream, k, g) + more); err != nil && !errors.Is(err, fs.ErrNotExist) {
					p.log.Error("cannot remove cache of resources", "upstream", upstream, "error", err)
				}
			}
		}
	}
}

// encodeTrials returns the record of a number of trials.
func encodeTrials(count int) []byte {
	text := fmt.Appendf(nil, "%s%d", trialsMagic, count)
	return fmt.Appendf(nil, "%s %x\n", text, sha256.Sum256(text))
}

// loadTrials reads the number of trials that earlier agents began. An unusable record counts as none, because a
// rollback without a reason is worse than another crash.
func (p *Proxy) loadTrials() (count int, unusable bool) {
	path := filepath.Join(p.dir, trialsFile)
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false
	}
	for count := 1; err == nil && count <= relay.MaxTrials; count++ {
		if bytes.Equal(data, encodeTrials(count)) {
			return count, false
		}
	}
	if err == nil {
		err = errDamaged
	}
	p.log.Error("record of crashes is not usable, starting a new one", "path", path, "error", err)
	return 0, true
}

// record writes the number of trials.
func (p *Proxy) record(r relay.Record) relay.Recorded {
	path := filepath.Join(p.dir, trialsFile)
	var err error
	if r.Count > 0 {
		err = disk.ReplaceBy(path+temporaryEnding, path, encodeTrials(r.Count))
	} else if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	recorded := relay.Recorded{Count: r.Count}
	if err != nil {
		recorded.Err = err.Error()
	}
	return recorded
}
