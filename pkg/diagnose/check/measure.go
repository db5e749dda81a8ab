package check

import (
	"context"
	"time"
)

// Outcome is what a test has found, without its name. All texts are for people, and contain no secret.
type Outcome struct {
	Status              Status
	Detail, Cause, Cure string
}

// Measure runs a test with a time limit, and returns its result.
func Measure(ctx context.Context, id ID, title string, limit time.Duration, test func(context.Context) Outcome) Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	o := test(ctx)
	return Result{
		ID: id, Title: title, Status: o.Status, Seconds: time.Since(began).Seconds(),
		Detail: line(o.Detail), Cause: line(o.Cause), Cure: line(o.Cure),
	}
}
