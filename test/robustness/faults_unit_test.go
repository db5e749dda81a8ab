package robustness

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/test/traffic"
)

// reserving reserves address space like a heap does, and makes a part of it writable when it reads a line.
const reserving = `
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
reserved = libc.mmap(None, 1 << 30, 0, 0x22, -1, 0)
print("reserved", flush=True)
for line in sys.stdin:
    print("denied" if libc.mprotect(reserved, 32 << 20, 3) else "granted", flush=True)
`

// TestNoMemoryDeniesWhatWasReserved: Envoy and Go programs reserve far more address space than they use.
func TestNoMemoryDeniesWhatWasReserved(t *testing.T) {
	program := exec.CommandContext(t.Context(), "python3", "-c", reserving)
	in, err := program.StdinPipe()
	must(t, err)
	out, err := program.StdoutPipe()
	must(t, err)
	must(t, program.Start())
	defer func() { _ = program.Wait() }()
	defer func() { _ = in.Close() }()
	lines := bufio.NewReader(out)
	says := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
			t.Fatalf("the program says %q, %v, want %q", line, err, want)
		}
	}
	says("reserved")
	end, err := faultOf(program.Process.Pid, NoMemory)
	must(t, err)
	_, _ = fmt.Fprintln(in)
	says("denied")
	must(t, end())
	_, _ = fmt.Fprintln(in)
	says("granted")
}

// TestAnInheritedLimitEnds: the fault of an agent ends with the limit of the Envoy that it has started meanwhile.
func TestAnInheritedLimitEnds(t *testing.T) {
	program := exec.CommandContext(t.Context(), "sleep", "60")
	must(t, program.Start())
	defer func() { _, _ = program.Process.Kill(), program.Wait() }()
	pid := program.Process.Pid
	now := func(resource int) (l unix.Rlimit) {
		must(t, unix.Prlimit(pid, resource, nil, &l))
		return l
	}
	for action, resource := range limited {
		_, err := faultOf(pid, action)
		must(t, err)
		if l := now(resource); l.Cur == l.Max {
			t.Fatalf("%s limits nothing", action)
		}
		must(t, unlimit(pid, resource))
		if l := now(resource); l.Cur != l.Max {
			t.Errorf("%s is still %d of %d", action, l.Cur, l.Max)
		}
	}
}

// TestRequestsDoNotWaitForOthers: a request that hangs would else keep those from being counted that fail meanwhile.
func TestRequestsDoNotWaitForOthers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, begun, release := &clients{}, make(chan string), make(chan struct{})
	c.every(ctx, &member{name: "paris"}, time.Millisecond, func(p traffic.Path) {
		begun <- p.String()
		<-release
	})
	paths := map[string]bool{}
	for range 3 * 2 * Gateways {
		select {
		case p := <-begun:
			paths[p] = true
		case <-time.After(10 * time.Second):
			t.Fatalf("requests have begun on %d paths only", len(paths))
		}
	}
	if len(paths) != 2*Gateways {
		t.Errorf("requests have begun on %d paths", len(paths))
	}
	cancel()
	close(release)
	go func() {
		for range begun { // those that had their turn
		}
	}()
	c.done.Wait()
}

// TestAStepLastsFromItsBegin: what waits for its turn must not end before it has had an effect.
func TestAStepLastsFromItsBegin(t *testing.T) {
	const long = 50 * time.Millisecond
	var begun time.Time
	lasted := time.Duration(0)
	err := Step{For: long}.lasting(t.Context(), func(context.Context, Step) (func() error, error) {
		<-time.After(2 * long)
		begun = time.Now()
		return func() error { lasted = time.Since(begun); return nil }, nil
	})
	if err != nil || lasted < long {
		t.Errorf("it lasted %s, %v", lasted, err)
	}
}
