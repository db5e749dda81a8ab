package traffic

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

// The names of the tests.
const (
	TestRequest     check.ID = "request"
	TestConnections check.ID = "connections"
	TestDownload    check.ID = "download"
	TestIdle        check.ID = "idle"
	TestExec        check.ID = "exec"
	TestPortForward check.ID = "port-forward"
)

const (
	// MaxConnections bounds the test of connections, so that it is no attack on the apiserver.
	MaxConnections = 1000
	// MaxBytes bounds a download.
	MaxBytes = 10 << 30
	// openAPIPath is the largest document that an apiserver serves to every authenticated user, with some MiB.
	openAPIPath = "/openapi/v2"
)

// TestRequest sends one request on this way, which a title describes.
func (t *Target) TestRequest(ctx context.Context, id check.ID, title string) check.Result {
	return check.Measure(ctx, id, title, 2*requestTime, func(ctx context.Context) check.Outcome {
		var name x509.HostnameError
		switch err := t.Request(ctx); {
		case errors.As(err, &name):
			return unknown(
				title+": the apiserver's certificate lacks the name "+name.Host+", so clients cannot use this mode",
				"nothing, if clients use the other mode; otherwise add the name to the certificate (kubeadm: certSANs)",
			)
		case err != nil:
			return failed(title+": a request has no answer", err, "this way to the apiserver is interrupted", seeCheck)
		}
		return passed("%s: the apiserver answers", title)
	})
}

// TestConnections opens connections at the same time, sends a request on each, and closes them when all have an answer.
func (t *Target) TestConnections(ctx context.Context, count int) check.Result {
	title := "many connections"
	return check.Measure(ctx, TestConnections, title, 6*requestTime, func(ctx context.Context) check.Outcome {
		times, errs := make([]time.Duration, count), make([]error, count)
		clients := make([]*client, count)
		var all sync.WaitGroup
		for i := range count {
			all.Go(func() {
				if clients[i], errs[i] = t.client(false); errs[i] != nil {
					return
				}
				began := time.Now()
				errs[i] = clients[i].get(ctx)
				times[i] = time.Since(began)
			})
		}
		all.Wait()
		for _, c := range clients {
			if c != nil {
				c.close()
			}
		}
		return judgeConnections(times, errs)
	})
}

func judgeConnections(times []time.Duration, errs []error) check.Outcome {
	count, failures := len(errs), 0
	var first error
	for _, err := range errs {
		if err != nil {
			failures++
			if first == nil {
				first = err
			}
		}
	}
	if first != nil {
		return failed(
			fmt.Sprintf("%d of %d connections at the same time fail", failures, count), first,
			"a limit on the path: spec.limits.connections or spec.limits.pendingConnections of the Tunnel, or one of a "+
				"load balancer, a firewall or the apiserver",
			"find the number that works with --connections, and raise the limit; if one connection fails too, "+seeCheck,
		)
	}
	slices.Sort(times)
	return passed(
		"%d connections at the same time: median %s, slowest %s", count, short(times[(count-1)/2]), short(times[count-1]),
	)
}

// short rounds a duration for people.
func short(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// TestDownload reads the OpenAPI document of the apiserver on one connection, again and again, until it has received
// a number of bytes.
func (t *Target) TestDownload(ctx context.Context, bytes int64, limit time.Duration) check.Result {
	return check.Measure(ctx, TestDownload, "large download", limit, func(ctx context.Context) check.Outcome {
		c, err := t.client(false)
		if err != nil {
			return failed("no client", err, "the kubeconfig cannot be used", seeCheck)
		}
		defer c.close()
		began, received := time.Now(), int64(0)
		for received < bytes {
			n, err := c.download(ctx)
			received += n
			if err == nil && n == 0 {
				err = errors.New("the answer is empty")
			}
			if err != nil {
				return failed(
					fmt.Sprintf("a download ends after %s", size(received)), err,
					"large answers do not pass: a device on the path has a smaller MTU and drops what is larger, or "+
						"the path is slower than the time limit",
					"compare the MTU of the networks between gateway and edge; for a slow path, use a smaller --bytes",
				)
			}
		}
		took := time.Since(began)
		return passed("%s in %s, %s/s", size(received), short(took), size(int64(float64(received)/took.Seconds())))
	})
}

func (c *client) download(ctx context.Context) (int64, error) {
	response, err := c.open(ctx, openAPIPath)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	return io.Copy(io.Discard, response.Body)
}

// size returns a number of bytes for people.
func size(n int64) string {
	const kib, mib = 1 << 10, 1 << 20
	if n < mib {
		return fmt.Sprintf("%.1f KiB", float64(n)/kib)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/mib)
}

// TestIdle sends a request, no byte for a time, and then another request, which must have an answer on the same
// connection. TCP keepalives are off: they would hide a device that drops idle connections.
func (t *Target) TestIdle(ctx context.Context, idle time.Duration) check.Result {
	limit := idle + 3*requestTime
	return check.Measure(ctx, TestIdle, "idle connection", limit, func(ctx context.Context) check.Outcome {
		quiet := *t
		quiet.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := t.dial(ctx, network, address)
			if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
				err = tcp.SetKeepAlive(false)
			}
			return conn, err
		}
		c, err := quiet.client(false)
		if err != nil {
			return failed("no client", err, "the kubeconfig cannot be used", seeCheck)
		}
		defer c.close()
		if err := c.get(ctx); err != nil {
			return failed("a request has no answer", err, "the way to the apiserver is interrupted", seeCheck)
		}
		select {
		case <-time.After(idle):
		case <-ctx.Done():
			return unknown("the command was stopped", "run it again")
		}
		reused, err := c.getReused(ctx)
		cause := "a load balancer, firewall or NAT on the path drops connections without traffic, or the apiserver does"
		cure := "raise its idle timeout above " + idle.String() + "; clients with TCP keepalives are not affected"
		switch {
		case err != nil:
			return failed("no answer on a connection that was idle for "+idle.String(), err, cause, cure)
		case !reused:
			return check.Outcome{
				Status: check.Warning, Detail: "a connection was closed while it was idle for " + idle.String(), Cause: cause,
				Cure: cure,
			}
		}
		return passed("a connection that was idle for %s works", idle)
	})
}

// getReused is get, and reports whether the request was sent on a connection that was open before.
func (c *client) getReused(ctx context.Context) (reused bool, err error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
	})
	err = c.get(ctx)
	return reused, err
}
