package envoyadmin

import (
	"context"
	"fmt"
	"time"

	dto "github.com/prometheus/client_model/go"
)

const (
	// restTimes is how long Envoy's main thread is left alone after it has answered a query for statistics, as a multiple
	// of the time that this took: such queries get at most a fifth of that thread, which also applies resources.
	restTimes = 4
	// maxRest bounds that time.
	maxRest = 30 * time.Second
	// answerTime bounds the wait for an answer that nobody waits for any more.
	answerTime = time.Minute
)

// Turns lets one query for statistics at a time reach an Envoy, and leaves it alone for a while after each answer.
// Envoy works on a query even if its client has gone. With statistics of 10,000 workload clusters that takes seconds,
// so repeated queries that time out would occupy its main thread without end. All Clients of an Envoy share one Turns.
// It is safe for concurrent use.
type Turns struct {
	free chan struct{} // has a value while no query runs
}

// NewTurns returns the Turns of an Envoy.
func NewTurns() *Turns {
	t := &Turns{free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// families is an answer of Envoy.
type families map[string]*dto.MetricFamily

// run waits for its turn and for the result of a query, at most until ctx ends. The query continues then, for up to
// answerTime, and the next one waits for it. A query also returns how long Envoy worked on its answer; 0: it gave none,
// because it has ended or hangs.
func (t *Turns) run(
	ctx context.Context, query func(context.Context) (families, time.Duration, error),
) (families, error) {
	select {
	case <-t.free:
	case <-ctx.Done():
		return nil, fmt.Errorf("querying Envoy for its statistics: an earlier query has not ended: %w", ctx.Err())
	}
	var answer families
	var err error
	done := make(chan struct{})
	go func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		defer cancel()
		var worked time.Duration
		answer, worked, err = query(within)
		close(done)
		time.AfterFunc(min(restTimes*worked, maxRest), func() { t.free <- struct{}{} })
	}()
	select {
	case <-done:
		return answer, err
	case <-ctx.Done():
		return nil, fmt.Errorf("querying Envoy for its statistics: %w", ctx.Err())
	}
}
