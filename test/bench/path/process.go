package path

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/spawn"
)

// patience bounds what should happen at once.
const patience = 30 * time.Second

// process is a program that was started here. It ends with this process.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
}

// start runs a program in a folder, with its output in NAME.log.
func start(dir, name, program string, args ...string) (*process, error) {
	p := &process{log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := spawn.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop kills the process and waits for its end.
func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// ended returns an error with the end of the log once the process has ended.
func (p *process) ended() error {
	select {
	case <-p.done:
		log, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s ended (%v): %s", filepath.Base(p.log), p.cmd.ProcessState, log[max(0, len(log)-2000):])
	default:
		return nil
	}
}

// until repeats a condition until it returns nil. It fails after patience, or when one of the processes ends.
func until(ctx context.Context, what string, condition func() error, processes ...*process) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		for _, p := range processes {
			if gone := p.ended(); gone != nil {
				return fmt.Errorf("waiting until %s: %w", what, errors.Join(gone, err))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, err)
		case <-tick.C:
		}
	}
}

// family returns processes and all of their descendants.
func family(of []int) []int {
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if fields := stat(pid); len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], pid)
		}
	}
	all := append([]int(nil), of...)
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// stat returns the fields of /proc/PID/stat after the name. The first is the state.
func stat(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return strings.Fields(rest)
}

// cpuSeconds returns the CPU time that processes and their descendants have used so far, in user and kernel mode,
// including descendants that have ended.
func cpuSeconds(pids []int) float64 {
	const ticks = 100 // USER_HZ of Linux
	sum := 0.0
	for _, pid := range family(pids) {
		fields := stat(pid)
		for i := 11; i < 15 && i < len(fields); i++ { // utime, stime, cutime, cstime
			v, _ := strconv.ParseFloat(fields[i], 64)
			sum += v / ticks
		}
	}
	return sum
}

// resident returns the resident memory of a process in bytes.
func resident(pid int) float64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize())
}

// admin sends a request to the admin interface of the Envoy in a folder.
func admin(ctx context.Context, dir, method, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, nil)
	if err != nil {
		return "", err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "admin.sock"))
		},
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// freePort returns a port of 127.0.0.1 without a listener.
func freePort() (uint16, error) {
	port, err := freeport.Choose()
	return uint16(port), err
}

func local(port uint16) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) }
