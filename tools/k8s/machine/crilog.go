package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// criLog is the log file of a container in the format that container runtimes write and the kubelet reads: time,
// stream, F for a complete line or P for a part of one, text.
type criLog struct {
	mu      sync.Mutex
	file    *os.File
	streams []*criStream
}

func openLog(path string) (*criLog, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, err
	}
	return &criLog{file: file}, nil
}

// stream returns a writer for stdout or stderr.
func (l *criLog) stream(name string) io.Writer {
	s := &criStream{log: l, name: name}
	l.streams = append(l.streams, s)
	return s
}

// Close writes the remaining lines without an end.
func (l *criLog) Close() {
	for _, s := range l.streams {
		if len(s.rest) > 0 {
			s.line("P", s.rest)
		}
	}
	_ = l.file.Close()
}

type criStream struct {
	log  *criLog
	name string
	rest []byte
}

// longLine is the length at which a line is split, so that a line without an end does not fill the memory.
const longLine = 16 << 10

func (s *criStream) Write(data []byte) (int, error) {
	s.rest = append(s.rest, data...)
	for {
		end := bytes.IndexByte(s.rest, '\n')
		switch {
		case end >= 0:
			s.line("F", s.rest[:end])
			s.rest = s.rest[end+1:]
		case len(s.rest) >= longLine:
			s.line("P", s.rest[:longLine])
			s.rest = s.rest[longLine:]
		default:
			return len(data), nil
		}
	}
}

func (s *criStream) line(tag string, text []byte) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	_, _ = fmt.Fprintf(s.log.file, "%s %s %s %s\n", time.Now().UTC().Format(time.RFC3339Nano), s.name, tag, text)
}

// printLog writes the text of a log without the fields that the format adds.
func printLog(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 2*longLine)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), " ", 4)
		if len(fields) < 4 {
			continue
		}
		end := "\n"
		if fields[2] == "P" {
			end = ""
		}
		if _, err := io.WriteString(w, fields[3]+end); err != nil {
			return err
		}
	}
	return lines.Err()
}
