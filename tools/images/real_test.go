package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// realRelease is what TestRealImages links into the programs.
var realRelease = release{commit: strings.Repeat("b", 40), time: 1_790_000_000}

// TestRealImages builds the images of this repository from two copies in folders of different names, and compares their
// digests. It then unpacks each image as a container runtime does, and runs its programs as user 65532 with its files
// as root folder. With IMAGES_COLD=1 the second build compiles every package again.
func TestRealImages(t *testing.T) {
	if os.Getenv("IMAGES_REQUIRED") == "" {
		t.Skip("it downloads packages and compiles for minutes: make test-images runs it")
	}
	if os.Geteuid() != 0 {
		t.Fatal("it changes owners and the root folder of processes: run it as root")
	}
	minor, err := protocolVersion(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	realRelease.version = "v" + minor + ".0-test"
	first := realBuild(t, filepath.Join(t.TempDir(), "one"))
	if os.Getenv("IMAGES_COLD") != "" {
		t.Setenv("GOCACHE", t.TempDir())
	}
	second := realBuild(t, filepath.Join(t.TempDir(), "another", "and", "deeper"))
	if a, b := read(t, first, digestsFile), read(t, second, digestsFile); a != b {
		t.Errorf("two builds give different digests:\n%s\n%s", a, b)
	}
	for _, i := range images {
		t.Run(i.name, func(t *testing.T) {
			all := platforms(t, filepath.Join(first, prefix+i.name))
			checkMachine(t, all["arm64"])
			root := unpack(t, all["amd64"])
			want := i.program + " " + realRelease.version + ", commit " + realRelease.commit + ", Envoy 1."
			if got := inside(t, root, "/"+programFolder+i.program, "--version"); !strings.HasPrefix(got, want) {
				t.Errorf("it prints %q, want %q", got, want)
			}
			if i.envoy {
				got := inside(t, root, "/"+programFolder+"envoy", "--version")
				if !strings.Contains(got, "/1.40.0/Clean/RELEASE/") {
					t.Errorf("Envoy prints %q", got)
				}
			}
			got := locators(document(t, []byte(read(t, root, sbomFolder, prefix+i.name+".spdx.json"))))
			if len(got) < 20 || !got["pkg:golang/golang.org/x/sys@v0.49.0"] {
				t.Errorf("the document lists %v", got)
			}
		})
	}
	t.Run("the gateway's capability", func(t *testing.T) {
		root := unpack(t, platforms(t, filepath.Join(first, prefix+"gateway"))["amd64"])
		checkCapability(t, root)
		checkWithoutCapability(t, root)
	})
}

// realBuild copies the repository to a folder, and builds its images there.
func realBuild(t *testing.T, copied string) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	files, err := command(t.Context(), root, nil, "git", "ls-files", "--cached", "--others", "--exclude-standard")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Split(files, "\n") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, and not committed yet
		}
		if err == nil {
			err = writeFile(filepath.Join(copied, name), data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(t.TempDir(), "images")
	var printed bytes.Buffer
	if code := run(t.Context(), []string{
		"-root", copied, "-out", out, "-version", realRelease.version, "-commit",
		realRelease.commit, "-time", strconv.FormatInt(realRelease.time, 10),
	}, &printed, &printed); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, printed.String())
	}
	t.Logf("%s", printed.String())
	return out
}

// checkMachine checks that every program and library is for arm64.
func checkMachine(t *testing.T, image v1.Image) {
	t.Helper()
	checked := 0
	entries(t, image, func(h *tar.Header, data []byte) {
		if !bytes.HasPrefix(data, []byte("\x7fELF")) {
			return
		}
		if checked++; checkProgram(data, "arm64") != nil {
			t.Errorf("%s: %v", h.Name, checkProgram(data, "arm64"))
		}
	})
	if checked == 0 {
		t.Error("the image for arm64 has no program")
	}
}

// unpack makes the files of an image, with owners, modes, links and capabilities, and what every container runtime
// adds: /dev/null and /proc.
func unpack(t *testing.T, image v1.Image) string {
	t.Helper()
	root := t.TempDir()
	for dir := root; strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // user 65532 starts programs below it
			t.Fatal(err)
		}
	}
	entries(t, image, func(h *tar.Header, data []byte) {
		if err := unpackEntry(filepath.Join(root, h.Name), h, data); err != nil {
			t.Fatal(err)
		}
	})
	proc := filepath.Join(root, "proc")
	const null = 1<<8 | 3
	if err := errors.Join(
		os.MkdirAll(filepath.Join(root, "dev"), 0o755), os.MkdirAll(proc, 0o755),
		syscall.Mknod(filepath.Join(root, "dev", "null"), syscall.S_IFCHR|0o666, null),
		os.Chmod(filepath.Join(root, "dev", "null"), 0o666),
		syscall.Mount("/proc", proc, "", syscall.MS_BIND|syscall.MS_REC, ""),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(proc, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return root
}

func unpackEntry(path string, h *tar.Header, data []byte) error {
	mode := os.FileMode(h.Mode & 0o777)
	if h.Mode&0o1000 != 0 {
		mode |= os.ModeSticky
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, path)
	case tar.TypeDir:
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	default:
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Chown(path, h.Uid, h.Gid), os.Chmod(path, mode)); err != nil {
		return err
	}
	if record := h.PAXRecords[capabilityRecord]; record != "" {
		return syscall.Setxattr(path, "security.capability", []byte(record), 0)
	}
	return nil
}

// containerCommand returns a command with the files of an image as root folder, as user 65532.
func containerCommand(ctx context.Context, root string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.WaitDelay = "/home/nonroot", waitDelay
	cmd.Env = []string{"PATH=/usr/local/bin", "HOME=/home/nonroot"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	return cmd
}

func inside(t *testing.T, root string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := containerCommand(ctx, root, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// gatewayArguments start a gateway that reaches no xds-server.
var gatewayArguments = []string{
	"/" + programFolder + "gateway-agent", "run", "--name=gateway-0", "--tunnel-domain=tunnels.example.com",
	"--xds-server=127.0.0.1:1", "--ca-file=/tmp/ca", "--token-file=/tmp/token", "--public-listen=127.0.0.1:18443",
	"--apiserver-listen=127.0.0.1:16443", "--connect-listen=127.0.0.1:13128", "--drain-timeout=1s",
}

// checkCapability starts a gateway. The agent may use NET_ADMIN, and nothing else. It starts Envoy, which it does only
// if it can close connections. Envoy has no capability.
func checkCapability(t *testing.T, root string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(filepath.Join(root, "tmp", "ca"), nil, 0o644),
		os.WriteFile(filepath.Join(root, "tmp", "token"), []byte("fl1.token"), 0o644)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	agent := containerCommand(ctx, root, gatewayArguments...)
	agent.Stdout, agent.Stderr = &out, &out
	agent.Cancel = func() error { return agent.Process.Signal(syscall.SIGTERM) }
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	envoy := 0
	for poll := time.NewTicker(10 * time.Millisecond); envoy == 0 && ctx.Err() == nil; <-poll.C {
		envoy = child(agent.Process.Pid, "envoy")
	}
	agentHas, envoyHas := capabilities(t, agent.Process.Pid, "CapPrm"), ""
	if envoy != 0 {
		envoyHas = capabilities(t, envoy, "CapPrm", "CapEff")
	}
	cancel()
	_ = agent.Wait() // it was told to end
	if want := fmt.Sprintf("%016x", capNetAdmin); agentHas != want {
		t.Errorf("the agent has capabilities %s, want %s", agentHas, want)
	}
	if want := fmt.Sprintf("%016x %016x", 0, 0); envoyHas != want {
		t.Errorf("Envoy has capabilities %q, want %s\n%s", envoyHas, want, out.String())
	}
}

// child returns the process id of the child of a name; 0: there is none.
func child(parent int, name string) int {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			comm, errComm := os.ReadFile("/proc/" + field + "/comm")
			if err == nil && errComm == nil && strings.TrimSpace(string(comm)) == name {
				return pid
			}
		}
	}
	return 0
}

// checkWithoutCapability starts a gateway in a container that may not have NET_ADMIN. The agent starts, and reports
// what is missing.
func checkWithoutCapability(t *testing.T, root string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	agent := containerCommand(ctx, root, gatewayArguments...)
	type result struct {
		out []byte
		err error
	}
	ended := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		const dropFromBoundingSet, netAdmin = 24, 12
		if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, dropFromBoundingSet, netAdmin, 0); errno != 0 {
			ended <- result{nil, errno}
			return
		}
		out, err := agent.CombinedOutput()
		ended <- result{out, err}
	}()
	got := <-ended
	var exit *exec.ExitError
	if !errors.As(got.err, &exit) || !strings.Contains(string(got.out), "needs the capability CAP_NET_ADMIN") {
		t.Errorf("without the capability: %v: %s", got.err, got.out)
	}
}

// capabilities returns fields of the status of a process.
func capabilities(t *testing.T, pid int, fields ...string) string {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var found []string
	for lines := bufio.NewScanner(io.LimitReader(f, 1<<16)); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if slices.Contains(fields, key) {
			found = append(found, strings.TrimSpace(value))
		}
	}
	return strings.Join(found, " ")
}
