package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A container is a process with its own process ids and mounts, which is restarted when it exits.
type container struct {
	pod  *pod
	spec *corev1.Container

	mu       sync.Mutex
	id       string
	process  *os.Process // nil while no process runs
	ready    bool
	restarts int32
	now      corev1.ContainerState
	last     corev1.ContainerState
}

func newContainer(p *pod, spec *corev1.Container) *container {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	return &container{pod: p, spec: spec, now: waiting}
}

// keep runs the container until ctx ends, and restarts it according to the policy.
func (c *container) keep(ctx context.Context, policy corev1.RestartPolicy) {
	wait := firstBackoff
	for ctx.Err() == nil {
		began := time.Now()
		code, err := c.once(ctx)
		if err != nil {
			slog.Error("container can't start", "pod", c.pod.name(), "container", c.spec.Name, "error", err)
			c.wait("CreateContainerError", err.Error())
		} else if ctx.Err() == nil {
			slog.Info("container has ended", "pod", c.pod.name(), "container", c.spec.Name, "exit_code", code)
			if policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && code == 0 {
				return
			}
			c.wait("CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container", wait))
		}
		if time.Since(began) > time.Minute {
			wait = firstBackoff
		}
		if !pause(ctx, wait) {
			return
		}
		wait = min(2*wait, lastBackoff)
		if err == nil {
			c.mu.Lock()
			c.restarts++
			c.mu.Unlock()
		}
	}
}

// once runs the container until it exits. When ctx ends, the container gets SIGTERM, and SIGKILL after the grace
// period.
func (c *container) once(ctx context.Context) (code int, err error) {
	start, err := c.plan()
	if err != nil {
		return 0, err
	}
	log, err := openLog(c.logFile())
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd, err := startContainer(start, log)
	if err != nil {
		return 0, err
	}
	c.setRunning(cmd.Process)
	probing, stopProbing := context.WithCancel(ctx)
	defer stopProbing()
	go c.probe(probing)

	ended := make(chan struct{})
	go func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.NewTimer(c.pod.grace())
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C:
			_ = cmd.Process.Kill()
		}
	}()
	_ = cmd.Wait()
	close(ended)
	c.setEnded(cmd.ProcessState)
	return cmd.ProcessState.ExitCode(), nil
}

// startContainer starts this program in the container's own namespaces, where it mounts the volumes and then executes
// the container's program. When process 1 of a namespace exits, the kernel kills all others.
func startContainer(start containerStart, log *criLog) (*exec.Cmd, error) {
	data, err := json.Marshal(start)
	if err != nil {
		return nil, err
	}
	// Through a pipe, because environments must not be visible on a command line.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", "container")
	cmd.Args[0] = "machine"
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{r}
	cmd.Stdout, cmd.Stderr = log.stream("stdout"), log.stream("stderr")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Setpgid: true}
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	_, err = w.Write(data)
	_ = w.Close()
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	return cmd, nil
}

func (c *container) logFile() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return filepath.Join(c.pod.logs(), c.spec.Name, strconv.Itoa(int(c.restarts))+".log")
}

func (c *container) setRunning(process *os.Process) {
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails
	c.mu.Lock()
	c.id, c.process = "machine://"+hex.EncodeToString(id), process
	c.ready = c.spec.ReadinessProbe == nil
	c.now = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	c.mu.Unlock()
	c.pod.notify()
}

func (c *container) setEnded(state *os.ProcessState) {
	reason := "Completed"
	if !state.Success() {
		reason = "Error"
	}
	c.mu.Lock()
	ended := &corev1.ContainerStateTerminated{
		ExitCode: int32(state.ExitCode()), Reason: reason, FinishedAt: metav1.Now(), ContainerID: c.id,
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		ended.ExitCode, ended.Signal = int32(128+status.Signal()), int32(status.Signal())
	}
	if c.now.Running != nil {
		ended.StartedAt = c.now.Running.StartedAt
	}
	c.now = corev1.ContainerState{Terminated: ended}
	c.process, c.ready = nil, false
	c.mu.Unlock()
	c.pod.notify()
}

// wait records why the container does not run.
func (c *container) wait(reason, message string) {
	c.mu.Lock()
	if c.now.Terminated != nil {
		c.last = c.now
	}
	c.now = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	c.mu.Unlock()
	c.pod.notify()
}

func (c *container) setReady(ready bool) {
	c.mu.Lock()
	changed := c.process != nil && c.ready != ready
	if changed {
		c.ready = ready
	}
	c.mu.Unlock()
	if changed {
		c.pod.notify()
	}
}

func (c *container) succeeded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now.Terminated != nil && c.now.Terminated.ExitCode == 0
}

// pid returns the process id, or 0 while no process runs.
func (c *container) pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return 0
	}
	return c.process.Pid
}

func (c *container) status() corev1.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	running := c.now.Running != nil
	return corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, ContainerID: c.id,
		State: c.now, LastTerminationState: c.last, Ready: c.ready, Started: &running, RestartCount: c.restarts,
	}
}
