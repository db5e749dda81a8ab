package manager

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"
)

// The manager's log lines: the time (in klog's format, to the microsecond), the event and the Cluster.
var (
	clusterOf  = regexp.MustCompile(` Cluster="([^"]+)"`)
	durationOf = regexp.MustCompile(` duration="([^"]+)"`)
)

const (
	connectedLine = `"Connected"`
	failedLine    = `"Connect failed"`
	beganLine     = `"Run health probe"`
	succeededLine = `"Health probe succeeded"`
	brokenLine    = `"Health probe failed`
	klogTime      = "20060102 15:04:05.000000"
)

// probe is a successful probe.
type probe struct {
	began time.Time
	took  time.Duration
}

// follower reads a manager's log while it grows.
type follower struct {
	path      string
	file      *os.File
	lines     *bufio.Reader
	rest      string
	connected map[string]time.Duration // by Cluster, the time that connecting took
	began     map[string]time.Time     // probes in progress
	probes    []probe
	failed    int
}

// read parses the lines that were written since the last call.
func (f *follower) read() error {
	if f.file == nil {
		file, err := os.Open(f.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the manager's log: %w", err)
		}
		f.file, f.lines, f.connected, f.began = file, bufio.NewReaderSize(
			file, 1<<20,
		), map[string]time.Duration{}, map[string]time.Time{}
	}
	for {
		line, err := f.lines.ReadString('\n')
		f.rest += line
		if errors.Is(err, io.EOF) {
			return nil // the last line may be incomplete
		}
		if err != nil {
			return fmt.Errorf("reading the manager's log: %w", err)
		}
		err = f.take(f.rest)
		f.rest = ""
		if err != nil {
			return err
		}
	}
}

func (f *follower) take(line string) error {
	cluster := clusterOf.FindStringSubmatch(line)
	if cluster == nil {
		return nil
	}
	switch key := cluster[1]; {
	case strings.Contains(line, connectedLine):
		took, err := time.ParseDuration(durationOf.FindStringSubmatch(line + ` duration=""`)[1])
		if err != nil {
			return fmt.Errorf("reading the manager's log: %q: %w", line, err)
		}
		f.connected[key] = took
	case strings.Contains(line, failedLine), strings.Contains(line, brokenLine):
		f.failed++
	case strings.Contains(line, beganLine):
		at, err := written(line)
		f.began[key] = at
		return err
	case strings.Contains(line, succeededLine):
		at, err := written(line)
		if began, ok := f.began[key]; ok && err == nil {
			f.probes = append(f.probes, probe{began, at.Sub(began)})
			delete(f.began, key)
		}
		return err
	}
	return nil
}

// written parses the time of a klog line: I1231 23:59:59.123456, without a year, in local time.
func written(line string) (time.Time, error) {
	fields := strings.Fields(line)
	if len(fields) < 2 || len(fields[0]) != 5 {
		return time.Time{}, fmt.Errorf("reading the manager's log: no time in %q", line)
	}
	at, err := time.ParseInLocation(
		klogTime, fmt.Sprintf("%d%s %s", time.Now().Year(), fields[0][1:], fields[1]), time.Local,
	)
	if err != nil {
		return at, fmt.Errorf("reading the manager's log: %w", err)
	}
	return at, nil
}

func (f *follower) close() {
	if f.file != nil {
		_ = f.file.Close()
	}
}
