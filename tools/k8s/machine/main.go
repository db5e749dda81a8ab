// Command machine plays a machine of a cloud for tests: what Cluster API's bootstrap provider sends as cloud-init user data
// runs here with the real kubeadm. The program is started inside of a network namespace, as root, and has a file system
// view, a host name and process ids of its own. It plays cloud-init, systemctl, the kubelet and the container runtime;
// containers of static Pods are processes. docs/development.md says what it leaves out.
//
//	ip netns exec NS machine run --dir DIR --hostname NAME --address IP --user-data FILE [--meta-data KEY=VALUE]...
//	    [--provider-id ID] [--kubelet-version V] [--program NAME[:TAG]=PATH]...
//
// It runs until SIGTERM or SIGINT; then nothing of the machine is left but its files in DIR/disk.
package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
)

func init() {
	// The parent-death signal of a child follows the thread that started it, and namespaces are a thread's: main keeps its own.
	runtime.LockOSThread()
}

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	os.Exit(run(os.Args))
}

// run chooses the role. All but run and idle are only for the program itself: the first process of the machine, its services,
// the start of a container, a command inside of one. As systemctl it is called by that name.
func run(args []string) int {
	if filepath.Base(args[0]) == "systemctl" {
		return systemctl(args[1:], os.Stdout, os.Stderr)
	}
	roles := map[string]func([]string) error{
		"run": runMachine, "init": runInit, "boot": runBoot, "container": runContainer, "enter": runEnter, "idle": runIdle,
	}
	if len(args) < 2 || roles[args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: machine run --dir DIR --hostname NAME --address IP --user-data FILE ...")
		return 2
	}
	err := roles[args[1]](args[2:])
	if code, ok := err.(exitCode); ok { //nolint:errorlint // made by a role itself, never wrapped
		return int(code)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "machine %s: %v\n", args[1], err)
		return 1
	}
	return 0
}

// An exitCode ends the program without a word: somebody has said it already.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
