package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/internal/portforward"
)

// DefaultAddress is where an xds-server serves inspection, and Port its port.
const (
	DefaultAddress = "127.0.0.1:9447"
	Port           = 9447
)

// DefaultNamespace is the namespace in deploy/kubernetes.
const DefaultNamespace = "fairlead-system"

// PodSelector selects the Pods of the xds-servers by the labels in deploy/kubernetes.
const PodSelector = "app.kubernetes.io/name=xds-server"

// PortName is the name of the inspection port in the Pods of the xds-servers.
const PortName = "inspect"

const (
	// callTime bounds a call whose context has no earlier deadline.
	callTime = 30 * time.Second
	// silentTime bounds a call of a server that did not answer the last one in time, so that it does not take the time of
	// all following calls. It doubles with each of them, because an answer may rightly take longer.
	silentTime   = time.Second
	maxDoublings = 5
	// maxMessage bounds one message. 30,000 Envoy clusters of a gateway with all details fit into it.
	maxMessage = 64 << 20
)

// Options select the xds-servers to query: the ones at Addresses, if given, otherwise all ready Pods of them in
// Namespace.
type Options struct {
	REST      *rest.Config // of the management cluster; not required with Addresses
	Namespace string       // of the installation; empty: DefaultNamespace
	Port      int          // of inspection in the Pods; 0: Port
	Addresses []string     // host:port of inspection, reachable from here
}

// Servers queries the xds-servers. It is safe for concurrent use.
type Servers struct {
	all     []*connection
	probing chan struct{} // see maxProbes
}

// connection is one xds-server.
type connection struct {
	name   string
	conn   *grpc.ClientConn
	silent atomic.Int32 // how many calls in succession it did not answer in time
}

// Connect finds the xds-servers. An unreachable server is not an error here: each query reports it. It is an error if
// there is none, or if listing them is forbidden.
func Connect(ctx context.Context, o Options) (*Servers, error) {
	s := &Servers{probing: make(chan struct{}, maxProbes)}
	add := func(name string, options ...grpc.DialOption) error {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
		conn, err := grpc.NewClient("passthrough:///"+name, options...)
		if err != nil {
			return fmt.Errorf("connecting to xds-server %s: %w", name, err)
		}
		s.all = append(s.all, &connection{name: name, conn: conn})
		return nil
	}
	for _, address := range o.Addresses {
		if err := add(address); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	if len(o.Addresses) > 0 {
		return s, nil
	}
	pods, err := findPods(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if err := add(pod.Name, grpc.WithContextDialer(dialler(pod))); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// findPods lists the Pods of the xds-servers that are ready.
func findPods(ctx context.Context, o Options) ([]*portforward.Pod, error) {
	namespace := cmp.Or(o.Namespace, DefaultNamespace)
	from := portforward.Options{REST: o.REST, Namespace: namespace, Selector: PodSelector, Port: cmp.Or(o.Port, Port)}
	if o.Port == 0 {
		from.PortName = PortName
	}
	found, total, err := portforward.Ready(ctx, from)
	if err != nil {
		return nil, fmt.Errorf(
			"listing the Pods of the xds-servers in namespace %s, which the Role fairlead-viewer allows: %w", namespace, err,
		)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf(
			"no ready Pod of an xds-server (%s) in namespace %s, of %d: set the namespace of the installation with "+
				"--installation, or the inspection addresses of the xds-servers with --xds-server",
			PodSelector,
			namespace,
			total,
		)
	}
	if err := portforward.Permitted(ctx, o.REST, namespace); err != nil {
		return nil, fmt.Errorf("the Role fairlead-viewer is missing: %w", err)
	}
	return found, nil
}

// dialler returns the dialler of a Pod for gRPC.
func dialler(pod *portforward.Pod) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := pod.Dial(ctx)
		if err != nil {
			return nil, err // not a nil *portforward.Conn
		}
		return conn, nil
	}
}

// Close ends all connections.
func (s *Servers) Close() error {
	var errs []error
	for _, c := range s.all {
		errs = append(errs, c.conn.Close())
	}
	return errors.Join(errs...)
}

// Names returns the names of the servers, in the order of discovery.
func (s *Servers) Names() []string {
	var names []string
	for _, c := range s.all {
		names = append(names, c.name)
	}
	return names
}

// each queries all servers concurrently, and returns their errors in their order.
func (s *Servers) each(ctx context.Context, ask func(ctx context.Context, i int, c *connection) error) []error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	errs := make([]error, len(s.all))
	var asked sync.WaitGroup
	for i, c := range s.all {
		asked.Go(func() {
			if err := c.ask(ctx, i, ask); err != nil {
				errs[i] = fmt.Errorf("asking xds-server %s: %w", c.name, explain(err))
			}
		})
	}
	asked.Wait()
	return errs
}

// ask makes one call.
func (c *connection) ask(ctx context.Context, i int, ask func(context.Context, int, *connection) error) error {
	limited, silent, began := ctx, c.silent.Load(), time.Now()
	if silent > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, silentTime<<min(silent-1, maxDoublings))
		defer cancel()
	}
	err := ask(limited, i, c)
	switch {
	case err == nil || !errors.Is(limited.Err(), context.DeadlineExceeded):
		c.silent.Store(0)
	case time.Since(began) >= silentTime: // less time than that proves nothing
		c.silent.CompareAndSwap(silent, silent+1) // concurrent calls count once
	}
	return err
}

// answered returns nil if at least one server answered.
func answered(errs []error) error {
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errors.Join(errs...)
}
