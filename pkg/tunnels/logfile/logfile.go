// Package logfile reads the lines that another program appends to a file, and replaces the file when it has become
// large. Input: a path. Output: lines, and the reasons why some could not be read. It does not know what a line says.
//
// To replace the file, Move renames it, the program reopens the path, Read finishes the moved file and continues with
// the new one, and Remove removes the moved file. A process that starts at any point of that reads the moved file
// first.
package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// MaxLine is the largest length of a line, in bytes. It exceeds a record of Envoy, which has about 250.
const MaxLine = 4 << 10

const (
	// chunk is the size of one read.
	chunk = 64 << 10
	// MaxRead is how many bytes one Read takes of a file: about 4,000 records, which a table applies in 30 ms.
	MaxRead = 16 * chunk
)

var (
	errLong = errors.New("it is too long")
	errTorn = errors.New("the file ends in it")
	errCut  = errors.New("the file was truncated")
)

// File is a file to which another program appends lines. It may be truncated, removed or replaced. A File is not safe
// for concurrent use.
type File struct {
	path string
	bad  func(reason error)

	file    *os.File // the file that is being read: the one at path, or the moved one; nil: none
	offset  int64
	partial []byte // the beginning of an incomplete line
	skip    bool   // discard the rest of a line that is too long
	buffer  []byte
}

// New returns the file at a path, which Read opens. bad is called for each line that cannot be passed on, and for a
// truncated file.
func New(path string, bad func(reason error)) File { return File{path: path, bad: bad} }

// moved is the path of the file that was moved away.
func (f *File) moved() string { return f.path + ".old" }

// Paths returns the paths of all files that may exist.
func (f *File) Paths() []string { return []string{f.moved(), f.path} }

// Offset returns how many bytes of the present file were read.
func (f *File) Offset() int64 { return f.offset }

// Opened reports whether a file is open.
func (f *File) Opened() bool { return f.file != nil }

// Move renames the file, so that its writer makes another one. It does nothing if the open file is not the one at the
// path: it was moved already, or is about to be replaced.
func (f *File) Move() (moved bool, err error) {
	if current, err := f.current(); err != nil || !current {
		return false, nil // also if there is no file at the path
	}
	if err := os.Rename(f.path, f.moved()); err != nil {
		return false, fmt.Errorf("moving log: %w", err)
	}
	return true, nil
}

// Remove removes the file that was moved, if there is one. Call it when what it contained is saved elsewhere.
func (f *File) Remove() error {
	if err := os.Remove(f.moved()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing old log: %w", err)
	}
	return nil
}

// Progress is what a Read has reached.
type Progress struct {
	More bool // it has read MaxRead bytes, and there may be more
	Left bool // it has moved on to the next file: save what was read from the file before, and call Remove
	Gone bool // there is no file at the path to append to
}

// Rounds returns after how many calls of Read everything is read that the files have now, at most.
func (f *File) Rounds() int {
	rounds := 2
	for _, path := range f.Paths() {
		if info, err := os.Stat(path); err == nil {
			rounds += 1 + int(info.Size()/MaxRead)
		}
	}
	return rounds
}

// Read passes on lines that were appended since the previous call; a line is valid until its call returns.
func (f *File) Read(line func([]byte)) (p Progress, err error) {
	if f.file == nil {
		if p.Gone, err = f.open(); p.Gone || err != nil {
			return p, err
		}
	}
	if p.More, err = f.drain(line); p.More || err != nil {
		return p, err
	}
	current, err := f.current()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Progress{Gone: true}, nil
	case current || err != nil:
		return p, err
	}
	// There is a new file, so nobody appends to this one any longer. The writer may have appended since the previous read.
	if p.More, err = f.drain(line); p.More || err != nil {
		return p, err
	}
	next, err := os.Open(f.path)
	if err != nil {
		return p, fmt.Errorf("opening log: %w", err) // the next call continues at the end of the present file
	}
	f.Close()
	f.file, p.Left = next, true
	p.More, err = f.drain(line)
	return p, err
}

// open opens the first file to read. The file that was moved away has the older events.
func (f *File) open() (gone bool, err error) {
	for _, path := range []string{f.moved(), f.path} {
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
		return false, fmt.Errorf("opening log: %w", err)
	}
	return false, nil
}

// current reports whether the open file is the one at the path.
func (f *File) current() (bool, error) {
	if f.file == nil {
		return false, nil
	}
	at, err := os.Stat(f.path)
	if err != nil {
		return false, fmt.Errorf("checking log: %w", err)
	}
	open, err := f.file.Stat()
	if err != nil {
		return false, fmt.Errorf("checking log: %w", err)
	}
	return os.SameFile(at, open), nil
}

// drain reads the open file to its end, or MaxRead bytes. After a truncation it reads from the beginning: repeated
// events are harmless, missing ones are a gap.
func (f *File) drain(line func([]byte)) (more bool, err error) {
	info, err := f.file.Stat()
	if err != nil {
		return false, fmt.Errorf("checking log: %w", err)
	}
	if info.Size() < f.offset {
		f.bad(errCut)
		f.reset()
	}
	if f.buffer == nil {
		f.buffer = make([]byte, chunk)
	}
	for end := f.offset + MaxRead; f.offset < end; {
		n, err := f.file.ReadAt(f.buffer, f.offset)
		f.offset += int64(n)
		f.split(f.buffer[:n], line)
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("reading log: %w", err)
		}
	}
	return true, nil
}

// split splits data into lines.
func (f *File) split(data []byte, line func([]byte)) {
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
func (f *File) reset() {
	if len(f.partial) > 0 {
		f.bad(errTorn)
	}
	f.offset, f.skip, f.partial = 0, false, f.partial[:0]
}

// Close closes the open file. The next Read begins with the first file.
func (f *File) Close() {
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file = nil
	f.reset()
}
