package memory

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

func TestTheLowestLimitOfAllGroupsCounts(t *testing.T) {
	const most = "9223372036854771712\n" // version 1 without a limit
	for name, test := range map[string]struct {
		files map[string]string
		want  uint64 // 0: none
	}{
		"version 2, in a container": {
			map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30,
		},
		"version 2, a group without a limit in one with a limit": {
			map[string]string{
				"proc/self/cgroup":                           "0::/a.slice/b.service\n",
				"sys/fs/cgroup/a.slice/memory.max":           "4096\n",
				"sys/fs/cgroup/a.slice/b.service/memory.max": "max\n",
			}, 4096,
		},
		"version 2, the lower of two limits": {
			map[string]string{
				"proc/self/cgroup":                           "0::/a.slice/b.service\n",
				"sys/fs/cgroup/a.slice/memory.max":           "4096\n",
				"sys/fs/cgroup/a.slice/b.service/memory.max": "8192\n",
			}, 4096,
		},
		"version 2 without a limit": {
			map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0,
		},
		"version 1": {
			map[string]string{
				"proc/self/cgroup": "4:memory:/pod/c\n1:cpu,cpuacct:/pod/c\n",
				"sys/fs/cgroup/memory/pod/c/memory.limit_in_bytes":      "8192\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes":            most,
				"sys/fs/cgroup/cpu,cpuacct/pod/c/memory.limit_in_bytes": "1\n",
			}, 8192,
		},
		"version 1 in a container that does not see its group": {
			map[string]string{
				"proc/self/cgroup":                           "4:memory:/docker/abc\n0::/\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes": "8192\n",
			}, 8192,
		},
		"version 1 without a limit": {
			map[string]string{"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": most}, 0,
		},
		"no control groups": {map[string]string{}, 0},
		"invalid files": {
			map[string]string{"proc/self/cgroup": "0\n0::\n", "sys/fs/cgroup/memory.max": "-1\n"}, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{}
			for path, text := range test.files {
				root[path] = &fstest.MapFile{Data: []byte(text)}
			}
			got, ok := read(root)
			if !ok {
				got = 0
			}
			if got != test.want || ok != (test.want > 0) {
				t.Errorf("got %d, %t, want %d", got, ok, test.want)
			}
		})
	}
}

func TestShare(t *testing.T) {
	for _, test := range []struct{ limit, other, want uint64 }{
		{1000, 0, 900},
		{1000, 600, 200},
		{1000, 1000, 900}, // the other process is in another group
		{1000, 2000, 900},
	} {
		if got := share(test.limit, test.other); got != test.want {
			t.Errorf("of %d beside %d: %d, want %d", test.limit, test.other, got, test.want)
		}
	}
}

// insideEnv makes this test program print what Bound has set.
const insideEnv = "FAIRLEAD_TEST_BOUND"

func TestMain(m *testing.M) {
	if other, ok := os.LookupEnv(insideEnv); ok {
		n, _ := strconv.ParseUint(other, 10, 64)
		fmt.Print(Bound(n, slog.New(slog.DiscardHandler)), debug.SetMemoryLimit(-1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestBoundInAGroup runs a program in a real control group with a limit of 256 MiB.
func TestBoundInAGroup(t *testing.T) {
	const limit = 256 << 20
	enter := group(t, limit)
	for name, test := range map[string]struct {
		environment string
		other       uint64
		want        string
	}{
		"alone":                      {"", 0, fmt.Sprint(share(limit, 0), share(limit, 0))},
		"beside a process of 56 MiB": {"", 56 << 20, fmt.Sprint(100<<20, 100<<20)},
		"with a GOMEMLIMIT":          {"GOMEMLIMIT=12345678", 0, fmt.Sprint(0, 12345678)},
	} {
		t.Run(name, func(t *testing.T) {
			child := exec.CommandContext(t.Context(), "sh", "-c", enter+` && exec "$0"`, os.Args[0])
			child.Env = append(os.Environ(), insideEnv+"="+strconv.FormatUint(test.other, 10))
			if test.environment != "" {
				child.Env = append(child.Env, test.environment)
			}
			out, err := child.CombinedOutput()
			if err != nil || string(out) != test.want {
				t.Errorf("%q, %v, want %q", out, err, test.want)
			}
		})
	}
}

func TestBoundWithoutALimit(t *testing.T) {
	if _, ok := Limit(); ok {
		t.Skip("this test runs in a control group with a limit")
	}
	if got := Bound(0, slog.New(slog.DiscardHandler)); got != 0 {
		t.Errorf("set %d", got)
	}
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("the limit is %d", got)
	}
}

// group makes a control group with a limit, in the one of this process, and returns the shell command that enters it.
func group(t *testing.T, limit int) (enter string) {
	t.Helper()
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip("no control groups: ", err)
	}
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		dir, file := filepath.Join("/sys/fs/cgroup", fields[2]), "memory.max"
		if fields[1] == "memory" {
			dir, file = filepath.Join("/sys/fs/cgroup/memory", fields[2]), "memory.limit_in_bytes"
		}
		if fields[1] != "memory" && fields[1] != "" {
			continue
		}
		dir = filepath.Join(dir, fmt.Sprintf("fairlead-memory-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		// The kernel makes the file only if the group has the controller.
		if f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0); err == nil {
			_, err = f.WriteString(strconv.Itoa(limit))
			if errors.Join(err, f.Close()) == nil {
				return fmt.Sprintf("echo $$ > %s/cgroup.procs", dir)
			}
		}
	}
	t.Skip("this user may not make a control group with a memory limit")
	return ""
}
