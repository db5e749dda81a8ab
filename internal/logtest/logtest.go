// Package logtest collects what a program or a logger writes while a test reads it. Its input is text; its output is
// that text and the lines that contain given words. It does not know formats of logs.
package logtest

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// Journal is a log in memory. The zero value is ready to use, and it is safe for concurrent use.
type Journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer. It never fails.
func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// String returns everything that was written.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// Lines returns the lines that contain all of the words.
func (j *Journal) Lines(words ...string) []string {
	var found []string
	for line := range strings.Lines(j.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			found = append(found, line)
		}
	}
	return found
}

// Count returns how many lines contain all of the words.
func (j *Journal) Count(words ...string) int { return len(j.Lines(words...)) }
