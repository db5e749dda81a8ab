package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
)

// systemPath is the PATH of services, as systemd sets it.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// runInit is process 1 of the machine. It changes to the machine's disk, starts all other work in a separate process
// and reaps orphans. When it exits, the kernel kills every process of the machine.
func runInit(args []string) error {
	if len(args) != 1 || os.Getpid() != 1 {
		return errors.New("only for the program itself")
	}
	c, err := readConfig(filepath.Join(args[0], configFile))
	if err != nil {
		return err
	}
	if err := enterDisk(args[0], c); err != nil {
		return err
	}
	if err := syscall.Sethostname([]byte(c.Hostname)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"machine", "boot"}, &syscall.ProcAttr{
		Env: []string{"PATH=" + systemPath}, Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return fmt.Errorf("starting the machine's services: %w", err)
	}
	go func() {
		for range signals {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	}()
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("waiting for the machine's services: %w", err)
		case ended == pid && status.Exited() && status.ExitStatus() == 0:
			return nil
		case ended == pid:
			return fmt.Errorf("the machine's services ended: exit status %d, signal %d", status.ExitStatus(), status.Signal())
		}
	}
}

// runBoot runs cloud-init and the kubelet until the machine is stopped.
func runBoot([]string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := readConfig(configFile)
	if err != nil {
		return err
	}
	slog.Info("machine boots", "hostname", c.Hostname, "address", c.Address)
	var services sync.WaitGroup
	services.Go(func() { newKubelet(c).run(ctx) })
	go func() { // not waited for: its processes end with the machine
		if err := cloudInit(ctx, c); err != nil {
			slog.Error("cloud-init has errors", "error", err)
			return
		}
		slog.Info("cloud-init is done")
	}()
	services.Wait()
	slog.Info("machine has stopped", "hostname", c.Hostname)
	return nil
}
