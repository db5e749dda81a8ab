package xdsproxy

import (
	"errors"
	"os"

	"github.com/fairlead/fairlead/internal/disk"
)

// smallFile is the size up to which a file is always rewritten, because extending it would not be cheaper.
const smallFile = 256 << 10

// file is the known state of a file on disk. The proxy's disk lock guards it. A file that existed at the start is
// rewritten first, because another program may have changed it.
type file struct {
	holds          set   // nil: not known
	first, changes int64 // size of the first section with the magic, and of the later sections
}

// anew reports whether the file must be written as a whole: it is small, or its changes are as large as its first
// section. In the long run that writes two bytes for each changed byte.
func (f *file) anew() bool { return f.holds == nil || f.first <= smallFile || f.changes >= f.first }

// differs returns the changes that turn the content of the file into from.
func (f *file) differs(from set) set {
	changes := set{}
	for _, name := range differing(f.holds, from) {
		changes[name] = from[name]
	}
	return changes
}

// replace writes a whole content through a temporary file of a fixed name, so that a crash leaves at most one.
func (f *file) replace(path string, all content) error {
	data, err := all.encode()
	if err == nil {
		err = disk.ReplaceBy(path+temporaryEnding, path, data)
	}
	if err != nil {
		return err
	}
	*f = file{holds: all.set, first: int64(len(data))}
	return nil
}

// extend appends a section of changes. After an error the next write rewrites the file.
func (f *file) extend(path string, changes content) error {
	data, err := changes.section(nil)
	if err == nil {
		err = add(path, data)
	}
	if err != nil {
		*f = file{}
		return err
	}
	for name, res := range changes.set {
		if res == nil {
			delete(f.holds, name)
		} else {
			f.holds[name] = res
		}
	}
	f.changes += int64(len(data))
	return nil
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
