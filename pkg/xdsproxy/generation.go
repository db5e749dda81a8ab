package xdsproxy

import (
	"errors"
	"os"

	"github.com/fairlead/fairlead/internal/disk"
)

// smallFile is up to how many bytes a file is always written anew: that costs no more than to extend it.
const smallFile = 256 << 10

// file is what is known of a file on disk. The proxy's lock of the disk guards it. One that was there at the start is written
// anew first: nobody knows what else has had it open.
type file struct {
	holds          set   // nil: not known
	first, changes int64 // bytes of the first section with the magic, and of those that follow
}

// anew says whether the file is to be written as a whole: it is small, or has as much of changes as of anything else, so that
// in the long run two bytes are written for one that has changed.
func (f *file) anew() bool { return f.holds == nil || f.first <= smallFile || f.changes >= f.first }

// differs are the changes that make of what the file holds something else.
func (f *file) differs(from set) set {
	changes := set{}
	for _, name := range differing(f.holds, from) {
		changes[name] = from[name]
	}
	return changes
}

// replace writes all of a content, through a file of a fixed name: a crash leaves one of it at most.
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

// extend adds a section of changes. If that fails the file is written anew the next time.
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

// add writes at the end of a file that is there, and returns when it is on the disk.
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
