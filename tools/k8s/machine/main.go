// Command machine simulates a cloud machine for tests: it runs the cloud-init user data of Cluster API's bootstrap
// provider with the real kubeadm. It is started inside of a network namespace, as root, and has its own file system
// view, host name and process ids. It replaces cloud-init, systemctl, the kubelet and the container runtime; containers
// of static Pods are processes. docs/development.md lists what it leaves out.
//
//	ip netns exec NS machine run --dir DIR --hostname NAME --address IP --user-data FILE [--meta-data KEY=VALUE]...
//	    [--provider-id ID] [--kubelet-version V] [--program NAME[:TAG]=PATH]...
//
// It runs until SIGTERM or SIGINT. After that only the machine's files in DIR/disk remain.
package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
)

func init() {
	// The parent-death signal of a child depends on the thread that started it, and namespaces belong to a thread. So
	// main keeps its thread.
	runtime.LockOSThread()
}

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	os.Exit(run(os.Args))
}

// run selects the role. Only run and idle are for users. The program starts the other roles itself: the first process
// of the machine, its services, the start of a container, a command inside of one. Called as systemctl it replaces that
// program.
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

// An exitCode ends the program without output, because the reason has been printed already.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
