package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// runEnter runs a command with the mounts, the process ids and the user of a container, and exits with its code: enter
// PID PROGRAM ARG...
func runEnter(args []string) error {
	if len(args) < 2 {
		return errors.New("only for the program itself")
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var user syscall.Stat_t
	if err := syscall.Stat(fmt.Sprintf("/proc/%d", pid), &user); err != nil {
		return err
	}
	if err := enterNamespaces(pid); err != nil {
		return fmt.Errorf("entering the container: %w", err)
	}
	program, err := lookPath(args[1])
	if err != nil {
		return err
	}
	cmd := exec.Command(program, args[2:]...)
	cmd.Args[0] = args[1]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if user.Uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user.Uid, Gid: user.Gid}}
	}
	// No parent-death signal: Go's check whether the parent has died already fails across process namespaces.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		<-signals
		_ = cmd.Process.Kill()
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitCode(max(exit.ExitCode(), 1))
	}
	return err
}

// enterNamespaces gives this thread the mounts of a process, and its children the process ids.
func enterNamespaces(pid int) error {
	mounts, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer mounts.Close()
	pids, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return err
	}
	defer pids.Close()
	// Only a thread that shares its root and working directory with no other thread may change its mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return errors.Join(unix.Setns(int(pids.Fd()), unix.CLONE_NEWPID), unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS))
}
