// Package spawn starts programs for tests from a thread that lives as long as the test process. Linux sends a parent
// death signal (PR_SET_PDEATHSIG) when the thread that started the program ends, not when the process ends. Go ends a
// thread when a goroutine that is locked to it ends, as after each visit to a network namespace. Any thread may end
// like that after it has started a program, so a program that must survive needs a thread that never ends.
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

// requests returns the channel that one goroutine reads. The goroutine is locked to its thread and never ends, so the
// thread does not end either.
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

// Start starts a program like cmd.Start.
func Start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	requests() <- request{cmd, result}
	return <-result
}

// Run starts a program and waits until it exits, like cmd.Run.
func Run(cmd *exec.Cmd) error {
	if err := Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}
