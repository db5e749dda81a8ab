package netns

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/spawn"
)

// TestMain lets the test binary act as a lab that is killed.
func TestMain(m *testing.M) {
	if os.Getenv("LAB_TO_BE_KILLED") != "" {
		if err := liveUntilKilled(context.Background()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// liveUntilKilled creates everything that a lab leaves behind, and prints its name.
func liveUntilKilled(ctx context.Context) error {
	name, err := NewLabName()
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(os.TempDir(), name), 0o755); err != nil {
		return err
	}
	network, err := NewNetwork(ctx, name, IPv4, 1)
	if err != nil {
		return err
	}
	sleeper := network.Workload.Command(ctx, "sleep", "300")
	if err := spawn.Start(sleeper); err != nil {
		return err
	}
	fmt.Println(name, sleeper.Process.Pid)
	return sleeper.Wait()
}

func TestLeftoversOfAKilledLabAreRemoved(t *testing.T) {
	needRoot(t)
	victim := exec.CommandContext(t.Context(), os.Args[0])
	victim.Env = append(os.Environ(), "LAB_TO_BE_KILLED=1", "TMPDIR="+t.TempDir())
	t.Setenv("TMPDIR", strings.TrimPrefix(victim.Env[len(victim.Env)-1], "TMPDIR="))
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var name string
	var pid int
	if _, err := fmt.Fscan(bufio.NewReader(out), &name, &pid); err != nil {
		t.Fatalf("the lab didn't say its name: %v", err)
	}

	if err := RemoveLeftovers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := traces(t, name, pid); len(left) != 6 {
		t.Fatalf("of a lab that still runs there is only %q", left)
	}
	_ = victim.Process.Kill()
	_ = victim.Wait()
	if err := RemoveLeftovers(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, 5*time.Second, "nothing is left", func() error { // a killed process takes a moment
		if left := traces(t, name, pid); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
}

// traces lists the resources of a lab: its folder, its process, and for each namespace what ip and /etc have.
func traces(t *testing.T, name string, pid int) []string {
	t.Helper()
	var found []string
	for _, dir := range []string{namespaceDir, os.TempDir()} {
		matches, err := filepath.Glob(filepath.Join(dir, name+"*"))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, matches...)
	}
	if etc, _ := filepath.Glob(filepath.Join(etcDir, name+"*")); len(etc) > 0 {
		found = append(found, etcDir)
	}
	if syscall.Kill(pid, 0) == nil {
		found = append(found, fmt.Sprint("process ", pid))
	}
	return found
}

func TestNamesOfOtherProgramsAreKept(t *testing.T) {
	own, err := NewLabName()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cni-1234", "fairlead-lab-", "fairlead-lab-x-1-2", own, own + "-gateway"} {
		if OwnerIsGone(name) {
			t.Errorf("%s counts as a dead lab's", name)
		}
	}
	if !OwnerIsGone(fmt.Sprintf("%s%d-1-abcdef-gateway", Prefix, os.Getpid())) {
		t.Error("a pid that another process has now counts as the owner's")
	}
}
