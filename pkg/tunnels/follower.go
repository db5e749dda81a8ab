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

// MaxLine exceeds the size of a record, which is about 250 bytes. A longer line is an error and a gap in the record.
const MaxLine = 4 << 10

// chunk is the size of one read.
const chunk = 64 << 10

var (
	errLong = errors.New("it is too long")
	errTorn = errors.New("the file ends in it")
	errCut  = errors.New("the file was truncated")
)

// follower reads the lines that are appended to a file. The file may be truncated, removed or replaced. A follower is
// not safe for concurrent use.
type follower struct {
	path string
	bad  func(reason error) // called for each invalid line

	file    *os.File // the file that is being read: the one at path, or an older one; nil: none
	offset  int64
	partial []byte // the beginning of an incomplete line
	skip    bool   // discard the rest of a line that is too long
	buffer  []byte
}

// logFiles is a follower with the table's progress in reading and replacing the files.
type logFiles struct {
	follower
	loaded  bool      // the files that existed at the start were read
	unsaved bool      // a file was left, and its events are not in the state file yet
	saveAt  time.Time // when to save the state, if unsaved
	goneAt  time.Time // since when the file does not exist; zero: it exists
}

func (f *follower) old() string { return f.path + ".old" }

// read passes on the lines that were appended since the previous call. left is true if read has moved on to the next
// file; the caller then saves what it read from the file before. gone is true if there is no file at the path for
// Envoy to append to.
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
	// There is a new file, so Envoy no longer appends to this one. It may have appended since the previous read.
	if err := f.drain(line); err != nil {
		return false, false, err
	}
	f.close()
	if f.file, err = os.Open(f.path); err != nil {
		return true, false, fmt.Errorf("opening log of tunnels: %w", err)
	}
	return true, false, f.drain(line)
}

// open opens the first file to read. The file that was moved away has the older events.
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

// current reports whether the open file is the one at the path.
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

// drain reads the open file to its end. After a truncation it reads from the beginning: repeated events are harmless,
// missing ones are a gap.
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

// split splits data into lines.
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

// reset starts at the beginning of a file. An incomplete line is reported as invalid.
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
