package watchdog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// workerName is the prefix of the names of Envoy's worker threads.
const workerName = "wrk:worker_"

// process is a running Envoy, with the CPU times of its threads at the last sample.
type process struct {
	pid, fd int
	main    string
	workers map[string]string // by path of the thread
}

// alive reports whether the process is still running. A pidfd becomes readable when its process ends: pidfd_open(2).
func (p *process) alive() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0)
	return err == nil && n == 0
}

// sample reports whether the main thread and any worker ran since the previous sample.
func (p *process) sample() (main, workers bool) {
	if len(p.workers) == 0 {
		p.workers = p.threads()
	}
	time, main := scheduled(fmt.Sprintf("/proc/%d/task/%d", p.pid, p.pid))
	main, p.main = main || time != p.main, time
	for thread, before := range p.workers {
		time, runs := scheduled(thread)
		workers = workers || runs || time != before
		p.workers[thread] = time
	}
	return main, workers
}

// threads returns the CPU times of the worker threads.
func (p *process) threads() map[string]string {
	found := map[string]string{}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.pid)) // the pattern is well formed
	for _, task := range tasks {
		name, err := os.ReadFile(filepath.Join(task, "comm"))
		if err == nil && strings.HasPrefix(string(name), workerName) {
			found[task], _ = scheduled(task)
		}
	}
	return found
}

// scheduled returns a text that changes whenever a thread had CPU time, and whether it currently waits for CPU time or
// a disk. A thread that is frozen, or waits for a lock, does neither. A healthy thread of Envoy runs every 100 ms,
// because Envoy's own watchdog wakes it.
func scheduled(task string) (time string, runs bool) {
	data, err := os.ReadFile(filepath.Join(task, "stat"))
	if err != nil {
		return "", false
	}
	// The name in field 2 may contain spaces and ends with the last bracket. After it come the state and, as fields 14
	// and 15, the user and system time: proc_pid_stat(5).
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 13 {
		return "", false
	}
	time, runs = fields[11]+" "+fields[12], fields[0] == "R" || fields[0] == "D"
	if data, err := os.ReadFile(filepath.Join(task, "schedstat")); err == nil {
		time = string(data) // in nanoseconds; the clock ticks above are 10 ms
	}
	return time, runs
}

// Observer turns the counters of a Probe into Signals.
type Observer struct {
	probe   *Probe
	main    uint64
	workers []uint64
}

// Observer returns an Observer that counts answers from now on. A Probe must have only one Observer.
func (p *Probe) Observer() *Observer {
	return &Observer{probe: p, workers: make([]uint64, len(p.workers))}
}

// Signals returns what was observed since the last call.
func (o *Observer) Signals() Signals {
	var s Signals
	p := o.probe
	n := p.main.Load()
	s.Main, o.main = n != o.main, n
	ran := false
	p.mu.Lock()
	if p.process != nil {
		s.MainRuns, ran = p.process.sample()
	}
	p.mu.Unlock()
	for i, w := range p.workers {
		n := w.answers.Load()
		s.Workers = append(s.Workers, Worker{Known: w.known.Load(), Answers: n != o.workers[i], Runs: ran})
		o.workers[i] = n
	}
	return s
}
