package logfile

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// FuzzFile writes bytes in two pieces, as Envoy may. Read must pass on the lines of the file, however they are split,
// and keep a bounded part of an incomplete line.
func FuzzFile(f *testing.F) {
	f.Add([]byte("one\ntwo\n"), uint16(2))
	f.Add([]byte("no end"), uint16(0))
	f.Add([]byte("\n\n\x00\n"), uint16(1))
	f.Add([]byte(strings.Repeat("x", MaxLine+1)+"\nafter\n"), uint16(MaxLine))
	f.Add([]byte("before\n"+strings.Repeat("{", 2*chunk)+"\nafter\n"), uint16(7))
	path := filepath.Join(f.TempDir(), "events")
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		n := min(int(cut), len(data))
		var lines [][]byte
		long := 0
		file := New(path, func(error) { long++ })
		defer file.Close()
		for i, piece := range [][]byte{data[:n], data} {
			if err := os.WriteFile(path, piece, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := file.Read(func(line []byte) { lines = append(lines, bytes.Clone(line)) }); err != nil {
				t.Fatalf("piece %d: %v", i, err)
			}
			if len(file.partial) > MaxLine || cap(file.partial) > 2*MaxLine+chunk {
				t.Fatalf("%d bytes of a line are kept", cap(file.partial))
			}
		}
		whole, _, _ := cutLast(data)
		wantLong := 0
		for part := range bytes.SplitSeq(whole, []byte{'\n'}) {
			switch {
			case len(part) > MaxLine:
				wantLong++
			case len(part) > 0:
				if len(lines) == 0 || !bytes.Equal(lines[0], part) {
					t.Fatalf("the line %.80q was not read, but %.80q", part, lines)
				}
				lines = lines[1:]
			}
		}
		if len(lines) > 0 || long < wantLong || long > wantLong+1 {
			t.Errorf("%d lines too many were read, %d lines were too long, want %d", len(lines), long, wantLong)
		}
	})
}

// TestReadEndsWhileItsFileGrows has a writer that appends more than Read takes. Nothing is lost, also over a
// replacement.
func TestReadEndsWhileItsFileGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	open := func() *os.File {
		out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = out.Close() })
		return out
	}
	const size = 1000
	out, read, written := open(), 0, 0
	record := []byte(strings.Repeat("x", size-1) + "\n")
	write := func() {
		if _, err := out.Write(record); err != nil {
			t.Fatal(err)
		}
		written++
	}
	file := New(path, func(err error) { t.Error(err) })
	defer file.Close()
	for range 2 * MaxRead / size {
		write()
	}
	grows := true
	line := func([]byte) {
		if read++; grows && read < 10*MaxRead/size { // so that the test ends in any case
			write()
		}
	}
	p, err := file.Read(line)
	if err != nil || !p.More || read > MaxRead/size {
		t.Fatalf("one call has read %d lines, %+v, %v", read, p, err)
	}
	if moved, err := file.Move(); !moved || err != nil {
		t.Fatal(err)
	}
	out, grows = open(), false
	for range 2 * MaxRead / size {
		write()
	}
	rounds, left := 0, false
	for most := file.Rounds(); p.More; rounds++ {
		if p, err = file.Read(line); err != nil || rounds > most {
			t.Fatalf("call %d of at most %d: %v", rounds, most, err)
		}
		left = left || p.Left
	}
	if read != written || !left {
		t.Errorf("%d of %d lines are read", read, written)
	}
}

// cutLast splits data after its last newline.
func cutLast(data []byte) (whole, rest []byte, found bool) {
	i := bytes.LastIndexByte(data, '\n')
	if i < 0 {
		return nil, data, false
	}
	return data[:i], data[i+1:], true
}

// TestNoLineIsReadAgainAfterAnError: the file in place of the one that was moved cannot be opened for a while.
func TestNoLineIsReadAgainAfterAnError(t *testing.T) {
	path, read := filepath.Join(t.TempDir(), "events"), 0
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := New(path, func(err error) { t.Error(err) })
	defer file.Close()
	line := func([]byte) { read++ }
	write("one\ntwo\n")
	if _, err := file.Read(line); err != nil || read != 2 {
		t.Fatalf("%d of 2 lines are read, %v", read, err)
	}
	if moved, err := file.Move(); !moved || err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0); err != nil { // no program can open a socket
		t.Fatal(err)
	}
	for range 3 {
		if p, err := file.Read(line); err == nil || p.Left || read != 2 {
			t.Errorf("%d of 2 lines are read, %+v, %v", read, p, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write("three\n")
	if p, err := file.Read(line); err != nil || !p.Left || read != 3 {
		t.Errorf("%d of 3 lines are read, %+v, %v", read, p, err)
	}
}
