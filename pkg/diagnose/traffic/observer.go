package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

const (
	// againTime is the time between two attempts to open a watch or a connection again.
	againTime = 500 * time.Millisecond
	// startTime bounds the first request, watch and connection together.
	startTime = 30 * time.Second
	// pauseTime is the shortest time between the starts of two checks: a check has requests of its own.
	pauseTime = 5 * time.Second
	// maxChecks bounds the checks of one Observer.
	maxChecks = 20
	// watchSeconds is the time after which an apiserver ends the watch itself. The Observer then opens another one.
	watchSeconds = 3600
	// stopTime bounds the last check, after the observation.
	stopTime = 45 * time.Second
)

// Observer keeps fresh requests, a watch and a connection running to one apiserver, and records what fails.
type Observer struct {
	Target   *Target
	Interval time.Duration // between two fresh requests, and between two requests on the connection
	// Check finds the broken hop after a failure; nil: no check.
	Check func(context.Context) check.Report

	found *recorder
	watch *stream
	conn  *client
	alarm chan struct{}
}

// stream is an open watch.
type stream struct {
	client *client
	body   io.ReadCloser
	began  time.Time
	end    func()
}

func (s *stream) close() {
	s.end()
	_ = s.body.Close()
	s.client.close()
}

// Start opens the watch and the connection and sends the first request. An error means that the way does not work, and
// that nothing runs. Run must follow if there is no error.
func (o *Observer) Start(ctx context.Context) (err error) {
	o.found, o.alarm = newRecorder(), make(chan struct{}, 1)
	opening, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := o.Target.Request(opening); err != nil {
		return fmt.Errorf("sending a request: %s", reason(err))
	}
	if o.conn, err = o.Target.client(false); err != nil {
		return err
	}
	if err := o.conn.get(opening); err != nil {
		return fmt.Errorf("opening a connection: %s", reason(err))
	}
	if o.watch, err = o.openWatch(ctx); err != nil {
		o.conn.close()
		return fmt.Errorf("opening a watch: %s", reason(err))
	}
	return nil
}

// Run observes until ctx ends, and returns what it found. It returns at most 45 s later, because of a last check.
func (o *Observer) Run(ctx context.Context) Record {
	var all sync.WaitGroup
	all.Go(func() { o.request(ctx) })
	all.Go(func() { o.keepWatch(ctx) })
	all.Go(func() { o.keepConnection(ctx) })
	all.Go(func() { o.explain(ctx) })
	all.Wait()
	if o.Check != nil && o.found.unexplained() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		report := o.Check(last)
		o.found.checked(&report, time.Now())
	}
	return o.found.finish(time.Now())
}

// broke records a failure, and notifies explain. An error that ctx caused is none.
func (o *Observer) broke(ctx context.Context, kind Kind, at time.Time, err error) {
	if ctx.Err() != nil {
		return
	}
	o.found.failed(kind, at, err)
	select {
	case o.alarm <- struct{}{}:
	default:
	}
}

// explain runs a check after failures, not more often than every 5 s, and only a limited number of times.
func (o *Observer) explain(ctx context.Context) {
	if o.Check == nil {
		return
	}
	for range maxChecks {
		select {
		case <-ctx.Done():
			return
		case <-o.alarm:
		}
		began := time.Now()
		report := o.Check(ctx)
		if ctx.Err() != nil {
			return // the report is about the end of ctx: Run checks again
		}
		o.found.checked(&report, time.Now())
		if retry.Sleep(ctx, pauseTime-time.Since(began)) != nil {
			return
		}
	}
}

// request sends requests, each on a connection of its own. A request without an answer does not delay the next one by
// more than its timeout.
func (o *Observer) request(ctx context.Context) {
	for {
		began := time.Now()
		// A request that is in flight when ctx ends may still succeed or fail.
		err := o.Target.Request(context.WithoutCancel(ctx))
		if err != nil {
			o.broke(context.WithoutCancel(ctx), KindRequest, began, err)
		} else {
			o.found.succeeded(KindRequest, began, time.Now())
		}
		if retry.Sleep(ctx, o.Interval-time.Since(began)) != nil {
			return
		}
	}
}

// keepWatch reads the watch, and opens it again when it breaks.
func (o *Observer) keepWatch(ctx context.Context) {
	for {
		ended := context.AfterFunc(ctx, o.watch.end)
		_, err := io.Copy(io.Discard, o.watch.body)
		ended()
		o.watch.close()
		if ctx.Err() != nil {
			return
		}
		// The apiserver ends a watch at its timeout, without an error.
		if err != nil || time.Since(o.watch.began) < watchSeconds*time.Second {
			if err == nil {
				err = errors.New("the apiserver, or its connection, ended the watch")
			}
			o.broke(ctx, KindWatch, time.Now(), err)
		}
		for o.watch = nil; o.watch == nil; {
			var err error
			if o.watch, err = o.openWatch(ctx); err == nil {
				break
			}
			if retry.Sleep(ctx, againTime) != nil {
				return
			}
		}
		o.found.succeeded(KindWatch, o.watch.began, o.watch.began)
	}
}

// openWatch opens a watch that ends with ctx.
func (o *Observer) openWatch(ctx context.Context) (*stream, error) {
	c, err := o.Target.client(false)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	opening := time.AfterFunc(requestTime, cancel)
	path := fmt.Sprintf("/api/v1/namespaces?watch=true&resourceVersion=0&timeoutSeconds=%d", watchSeconds)
	response, err := c.open(ctx, path)
	if !opening.Stop() || err != nil {
		cancel()
		if err == nil {
			_ = response.Body.Close()
			err = errors.New("the watch did not open in time")
		}
		c.close()
		return nil, err
	}
	return &stream{client: c, body: response.Body, began: time.Now(), end: cancel}, nil
}

// keepConnection sends a request at each interval on one connection, and notices when that breaks.
func (o *Observer) keepConnection(ctx context.Context) {
	defer func() { o.conn.close() }()
	whole := true
	for retry.Sleep(ctx, o.Interval) == nil {
		began := time.Now()
		reused, err := o.conn.getReused(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && whole:
			o.broke(ctx, KindConnection, began, err)
			whole = false
		case err == nil && whole && !reused:
			o.broke(ctx, KindConnection, began, errors.New("the connection was closed between two requests"))
			o.found.succeeded(KindConnection, began, time.Now())
		case err == nil:
			o.found.succeeded(KindConnection, began, time.Now())
			whole = true
		}
	}
}
