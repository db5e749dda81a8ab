// Package spawn starts programs for tests from a thread that lives as long as the test process. Linux sends a parent death
// signal (PR_SET_PDEATHSIG) when the thread that started the program ends, not when the process ends. Go ends a thread when a
// goroutine that is locked to it ends, as for each visit to a network namespace. Any thread can become that one after it has
// started a program, so a program that must survive may not be started from just any thread.
package spawn

import (
	"os/exec"
	"runtime"
	"sync"
)

// request is a program to start, and the channel for the result.
type request struct {
	cmd    *exec.Cmd
	result chan<- error
}

// requests is read by one goroutine. It is locked to its thread and never ends, so the thread does not end either.
var requests = sync.OnceValue(func() chan<- request {
	c := make(chan request)
	go func() {
		runtime.LockOSThread()
		for r := range c {
			r.result <- r.cmd.Start()
		}
	}()
	return c
})

// Start starts a program, as cmd.Start does.
func Start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	requests() <- request{cmd, result}
	return <-result
}

// Run starts a program and waits for its end, as cmd.Run does.
func Run(cmd *exec.Cmd) error {
	if err := Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}
