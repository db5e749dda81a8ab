package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/internal/portforward"
	"github.com/fairlead/fairlead/internal/retry"
)

const (
	// gatewaySelector, connectName and connectPort are those of deploy/kubernetes.
	gatewaySelector = "app.kubernetes.io/name=gateway"
	connectName     = "connect"
	connectPort     = 3128

	// listedFor is how long a list of Pods is used. A connection that fails reads it again at once.
	listedFor = 5 * time.Second
	// attemptTime bounds one attempt with one gateway. A gateway holds a request without a tunnel for 1.4 s.
	attemptTime = 8 * time.Second
	// openTime bounds all attempts of one connection. It exceeds the restart of a gateway's Envoy, and is short enough
	// for a user who waits for the reason.
	openTime = 12 * time.Second
)

// between is the wait between two rounds through all gateways.
var between = retry.Backoff{Min: 250 * time.Millisecond, Max: 2 * time.Second}

// gateways opens connections through the gateways of an installation, each by a port-forward of its own. So the end of
// a gateway ends its connections, and the next connections lead through another one.
type gateways struct {
	rest      *rest.Config
	namespace string

	mu   sync.Mutex
	pods []*portforward.Pod
	read time.Time
}

// upstream is a connection to an apiserver behind the CONNECT route of a gateway.
type upstream struct {
	*portforward.Conn
	io.Reader // has what the gateway sent after its response
}

// Read reads from the apiserver.
func (u *upstream) Read(p []byte) (int, error) { return u.Reader.Read(p) }

// denial is the response of a gateway that has no connection for a name. Another gateway would send the same.
type denial struct {
	code int
	text string
}

// Error returns the cause.
func (d *denial) Error() string { return d.text }

// connect asks one ready gateway after the other for a connection to a name, until one responds. If ctx ends before, it
// returns the error of the last attempt that ended by itself, or else of the one that ctx has ended.
func (g *gateways) connect(ctx context.Context, authority string) (*upstream, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	var last error
	for round := 0; ; round++ {
		pods, err := g.ready(ctx, round > 0)
		if final(err) {
			return nil, err
		}
		if err != nil && (ctx.Err() == nil || last == nil) {
			last = err
		}
		for _, pod := range pods {
			conn, err := connectThrough(ctx, pod, authority)
			if err == nil || final(err) {
				return conn, err
			}
			if ctx.Err() == nil || last == nil {
				last = err
			}
		}
		if retry.Sleep(ctx, between.Wait(round)) != nil {
			return nil, last
		}
	}
}

// final reports whether another attempt would fail in the same way.
func final(err error) bool {
	var d *denial
	return errors.As(err, &d) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// ready returns the gateways that are ready, in random order, so that the connections are spread over them. It is an
// error if there is none.
func (g *gateways) ready(ctx context.Context, again bool) ([]*portforward.Pod, error) {
	g.mu.Lock()
	pods, fresh := g.pods, time.Since(g.read) < listedFor
	g.mu.Unlock()
	if !fresh || again {
		var total int
		var err error
		ctx, cancel := context.WithTimeout(ctx, attemptTime)
		defer cancel()
		pods, total, err = portforward.Ready(ctx, portforward.Options{
			REST: g.rest, Namespace: g.namespace, Selector: gatewaySelector, PortName: connectName, Port: connectPort,
		})
		switch {
		case err != nil:
			return nil, fmt.Errorf(
				"listing the Pods of the gateways in namespace %s, which the Role fairlead-proxy allows: %w", g.namespace, err,
			)
		case len(pods) == 0:
			return nil, fmt.Errorf(
				"no ready Pod of a gateway (%s) in namespace %s, of %d: set the namespace of the installation with --installation",
				gatewaySelector, g.namespace, total,
			)
		}
		g.mu.Lock()
		g.pods, g.read = pods, time.Now()
		g.mu.Unlock()
	}
	shuffled := make([]*portforward.Pod, len(pods))
	for to, from := range rand.Perm(len(pods)) {
		shuffled[to] = pods[from]
	}
	return shuffled, nil
}

// check opens and closes a port-forward to a gateway, to find a missing permission before a client does.
func (g *gateways) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	pods, err := g.ready(ctx, false)
	if err != nil {
		return err
	}
	var errs []error
	for _, pod := range pods {
		conn, err := dial(ctx, pod)
		if err == nil {
			return conn.Close()
		}
		errs = append(errs, err)
	}
	if err := portforward.Permitted(ctx, g.rest, g.namespace); err != nil {
		return fmt.Errorf("the Role fairlead-proxy is missing: %w", err)
	}
	return errors.Join(errs...)
}

func dial(ctx context.Context, pod *portforward.Pod) (*portforward.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	return pod.Dial(ctx)
}

// connectThrough sends a CONNECT to one gateway.
func connectThrough(ctx context.Context, pod *portforward.Pod, authority string) (*upstream, error) {
	conn, err := dial(ctx, pod)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	reader := bufio.NewReader(conn)
	response, err := requestConnect(conn, reader, authority)
	if err == nil && response.StatusCode != http.StatusOK {
		err = denied(authority, response.StatusCode)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		if d := (*denial)(nil); errors.As(err, &d) {
			return nil, err
		}
		return nil, fmt.Errorf("connecting to %s through Pod %s: %w", authority, pod.Name, err)
	}
	return &upstream{conn, reader}, nil
}

func requestConnect(conn io.Writer, reader *bufio.Reader, authority string) (*http.Response, error) {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority); err != nil {
		return nil, err
	}
	return http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
}

// denied explains the response of a gateway.
func denied(authority string, code int) error {
	switch code {
	case http.StatusNotFound:
		return &denial{code, "the gateways have no tunnel with the name " + authority}
	case http.StatusServiceUnavailable:
		return &denial{code, "no reverse tunnel to " + authority + " is up: run fairlead check"}
	}
	return &denial{http.StatusBadGateway, fmt.Sprintf("a gateway responded to CONNECT %s with %d", authority, code)}
}
