package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/lab"
)

// Answer is one answer of `fairlead check`.
type Answer struct{ check.Report }

// Hop returns the result of one hop; the zero value if check has not looked at it.
func (a Answer) Hop(id check.ID) check.Result {
	for _, h := range a.Hops {
		if h.ID == id {
			return h
		}
	}
	return check.Result{}
}

// String returns the conclusion.
func (a Answer) String() string {
	v := a.Deciding()
	if v == nil {
		return string(a.Status)
	}
	return fmt.Sprintf("%s at %s: %s; cause: %s; cure: %s", a.Status, v.ID, v.Detail, v.Cause, v.Cure)
}

// streamTime is how long a watch must stay open here.
const streamTime = 200 * time.Millisecond

// Check runs the command that an operator would run, in the management network of a lab. An exit code that contradicts
// the report is an error.
func Check(ctx context.Context, l *lab.Lab, namespace, cluster string, flags ...string) (Answer, error) {
	args := append([]string{
		"check", "-n", namespace, cluster, "-o", "json", "--watch-for=" + streamTime.String(), l.Inspection(),
	}, flags...)
	out, code, err := Output(ctx, l, args...)
	if err != nil {
		return Answer{}, err
	}
	var answer Answer
	if err := json.Unmarshal(out, &answer.Report); err != nil {
		return Answer{}, fmt.Errorf("reading what check says: %w: %s", err, out)
	}
	if broken := answer.Status == check.Broken; broken != (code == 1) || !broken && code != 0 {
		return Answer{}, fmt.Errorf("the result is %s, and the exit code of check is %d", answer, code)
	}
	return answer, nil
}

var (
	// limiter limits how often tests run a command, because each run is a process.
	limiter = rate.NewLimiter(4, 8)
	// commands keeps the management cluster's kubeconfig from being written while it is read.
	commands sync.Mutex
)

// Output runs a command of fairlead, and returns its output and its exit code. A command that fails without output is
// an error.
func Output(ctx context.Context, l *lab.Lab, args ...string) (stdout []byte, code int, err error) {
	if err := limiter.Wait(ctx); err != nil {
		return nil, 0, err
	}
	commands.Lock()
	cmd, err := l.Command(ctx, args...)
	commands.Unlock()
	if err != nil {
		return nil, 0, err
	}
	var complaint strings.Builder
	cmd.Stderr = &complaint
	stdout, err = cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(stdout) > 0 {
		return stdout, exit.ExitCode(), nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("running fairlead %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return stdout, 0, nil
}

// Text returns what check prints for people about a Cluster.
func Text(ctx context.Context, l *lab.Lab, namespace, cluster string) string {
	out, _, err := Output(ctx, l, "check", "-n", namespace, cluster, l.Inspection())
	if err != nil {
		return err.Error()
	}
	return string(out)
}
