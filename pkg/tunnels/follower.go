package tunnels

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// MaxLine is more than a record may have, which is about 250 bytes. A longer line is an error, and a gap in the record.
const MaxLine = 4 << 10

// chunk is how much is read at a time.
const chunk = 64 << 10

var (
	errLong = errors.New("it is too long")
	errTorn = errors.New("the file ends in it")
	errCut  = errors.New("the file was truncated")
)

// follower reads the lines that are appended to a file, which may be truncated, removed or replaced by another. It is not
// safe for concurrent use.
type follower struct {
	path string
	bad  func(reason error) // told of each line that can't be one

	file    *os.File // that is being read: at path, or older. nil: none
	offset  int64
	partial []byte // of a line that has no end yet
	skip    bool   // up to the end of a line that is too long
	buffer  []byte
}

// logFiles is a follower, and where the table stands with the files.
type logFiles struct {
	follower
	loaded  bool      // what was on disk at the beginning was read
	unsaved bool      // a file was left whose events are in no state yet
	saveAt  time.Time // when to save the state, if unsaved
	goneAt  time.Time // since when there is no file; zero: there is one
}

func (f *follower) old() string { return f.path + ".old" }

// read hands on the lines that have come since the last call. left is true if it has gone on to the next file: then what was
// in the one before is to be kept by somebody else. gone is true if there is nothing at the path that Envoy could write to.
func (f *follower) read(line func([]byte)) (left, gone bool, err error) {
	if f.file == nil {
		if gone, err := f.open(); gone || err != nil {
			return false, gone, err
		}
	}
	if err := f.drain(line); err != nil {
		return false, false, err
	}
	current, err := f.current()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, true, nil
	case current || err != nil:
		return false, false, err
	}
	// There is a new file, so nothing is appended to this one any more. But it may have been since it was drained.
	if err := f.drain(line); err != nil {
		return false, false, err
	}
	f.close()
	if f.file, err = os.Open(f.path); err != nil {
		return true, false, fmt.Errorf("opening log of tunnels: %w", err)
	}
	return true, false, f.drain(line)
}

// open opens the file to begin with: what was moved away has the older events.
func (f *follower) open() (gone bool, err error) {
	for _, path := range []string{f.old(), f.path} {
		f.file, err = os.Open(path)
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		f.file = nil
		return true, nil
	}
	if err != nil {
		f.file = nil
		return false, fmt.Errorf("opening log of tunnels: %w", err)
	}
	return false, nil
}

// current says whether the open file is the one at the path.
func (f *follower) current() (bool, error) {
	at, err := os.Stat(f.path)
	if err != nil {
		return false, fmt.Errorf("checking log of tunnels: %w", err)
	}
	open, err := f.file.Stat()
	if err != nil {
		return false, fmt.Errorf("checking log of tunnels: %w", err)
	}
	return os.SameFile(at, open), nil
}

// drain reads the open file to its end. What is read again of a file that was truncated does no harm, what is missing is a gap.
func (f *follower) drain(line func([]byte)) error {
	info, err := f.file.Stat()
	if err != nil {
		return fmt.Errorf("checking log of tunnels: %w", err)
	}
	if info.Size() < f.offset {
		f.bad(errCut)
		f.reset()
	}
	if f.buffer == nil {
		f.buffer = make([]byte, chunk)
	}
	for {
		n, err := f.file.ReadAt(f.buffer, f.offset)
		f.offset += int64(n)
		f.split(f.buffer[:n], line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading log of tunnels: %w", err)
		}
	}
}

// split cuts what was read into lines.
func (f *follower) split(data []byte, line func([]byte)) {
	for len(data) > 0 {
		head, rest, ends := bytes.Cut(data, []byte{'\n'})
		data = rest
		if len(f.partial)+len(head) > MaxLine && !f.skip {
			f.skip, f.partial = true, f.partial[:0]
			f.bad(errLong)
		}
		if !f.skip {
			f.partial = append(f.partial, head...)
		}
		if !ends {
			return
		}
		if len(f.partial) > 0 && !f.skip {
			line(f.partial)
		}
		f.skip, f.partial = false, f.partial[:0]
	}
}

// reset goes to the beginning of a file. A line that has no end will have none.
func (f *follower) reset() {
	if len(f.partial) > 0 {
		f.bad(errTorn)
	}
	f.offset, f.skip, f.partial = 0, false, f.partial[:0]
}

func (f *follower) close() {
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file = nil
	f.reset()
}
