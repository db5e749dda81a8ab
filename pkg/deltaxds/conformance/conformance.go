// Package conformance is a test of servers of the incremental xDS protocol: a table of exchanges between a client and a
// server, from Envoy's documentation of the protocol. In goes a server; out come the exchanges in which it deviates. It
// does not know what the resources are, or how the server is implemented.
package conformance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
)

const (
	// patience is how long a response may take.
	patience = 10 * time.Second
	// pause is how long a response that must not be sent is waited for.
	pause = 60 * time.Millisecond
)

// Stream is a client's side of a stream.
type Stream interface {
	Send(*discoveryv3.DeltaDiscoveryRequest) error
	Recv() (*discoveryv3.DeltaDiscoveryResponse, error)
}

// Server is a server under test. It may serve further resources, which are ignored.
type Server struct {
	TypeURL string
	Node    *corev3.Node // for the first request of a stream
	// Open opens a stream, which ends with its context.
	Open func(context.Context) (Stream, error)
	// Set has the server serve exactly these resources, by the names in the table: each has a content for each number. It
	// returns when the next request is answered accordingly.
	Set func(resources map[string]int) error
	// Name is the server's name for a name in the table; nil: the same.
	Name func(string) string
	// Names is set if the server serves resources by name, and not only all of them.
	Names bool
}

// Exchange is one row of the table.
type Exchange struct {
	Rule  string
	Names bool // only for servers that serve resources by name
	steps []step
}

// step is one event of an exchange: a change of the resources, a request, a response or a new stream.
type step func(*client) error

// Table returns the exchanges that apply to a server.
func Table(s Server) []Exchange {
	return slices.DeleteFunc(slices.Clone(exchanges), func(e Exchange) bool { return e.Names && !s.Names })
}

// Run returns an error if the server deviates from an exchange.
func (e Exchange) Run(ctx context.Context, s Server) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &client{Server: s, ctx: ctx, has: map[string]string{}, contents: map[string]string{}}
	if err := c.open(); err != nil {
		return err
	}
	for i, do := range e.steps {
		if err := do(c); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// client is a client that does what the steps say.
type client struct {
	Server
	ctx      context.Context
	stream   Stream
	cancel   context.CancelFunc
	began    bool // the node was sent
	got      chan *discoveryv3.DeltaDiscoveryResponse
	ended    chan error
	nonces   []string          // of all responses of this stream
	has      map[string]string // versions, by the server's names
	contents map[string]string // the version of each content that was sent, by name=content
}

func (c *client) name(name string) string {
	if c.Name == nil || name == "*" {
		return name
	}
	return c.Name(name)
}

func (c *client) names(names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, c.name(name))
	}
	return all
}

func (c *client) open() error {
	if c.cancel != nil {
		c.cancel()
	}
	ctx, cancel := context.WithCancel(c.ctx)
	stream, err := c.Open(ctx)
	if err != nil {
		cancel()
		return err
	}
	c.stream, c.cancel, c.nonces, c.began = stream, cancel, nil, false
	c.got, c.ended = make(chan *discoveryv3.DeltaDiscoveryResponse, 64), make(chan error, 1)
	go func(got chan<- *discoveryv3.DeltaDiscoveryResponse, ended chan<- error) {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			got <- r
		}
	}(c.got, c.ended)
	return nil
}

func (c *client) send(r *discoveryv3.DeltaDiscoveryRequest) error {
	r.TypeUrl = c.TypeURL
	if !c.began {
		r.Node, c.began = c.Node, true
	}
	return c.stream.Send(r)
}

// set has the server serve exactly these resources, each with a content.
func set(resources map[string]int) step { return func(c *client) error { return c.Set(resources) } }

// subscribe sends a request that adds names; none: a request without names.
func subscribe(names ...string) step {
	return func(c *client) error {
		return c.send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: c.names(names)})
	}
}

// unsubscribe sends a request that removes names.
func unsubscribe(names ...string) step {
	return func(c *client) error {
		for _, name := range c.names(names) {
			delete(c.has, name)
		}
		if slices.Contains(names, "*") {
			clear(c.has)
		}
		return c.send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: c.names(names)})
	}
}

// reconnect opens another stream, and states what the client has, with some changes: versions by name, empty for a
// resource that it has lost.
func reconnect(changes map[string]string, names ...string) step {
	return func(c *client) error {
		for name, version := range changes {
			if c.has[c.name(name)] = version; version == "" {
				delete(c.has, c.name(name))
			}
		}
		if err := c.open(); err != nil {
			return err
		}
		return c.send(&discoveryv3.DeltaDiscoveryRequest{
			ResourceNamesSubscribe: c.names(names), InitialResourceVersions: maps.Clone(c.has),
		})
	}
}

// ack accepts the last response.
func ack(c *client) error { return c.answer(c.nonces[len(c.nonces)-1], "") }

// nack rejects the last response. The client keeps what it was sent, as Envoy keeps what is valid of it.
func nack(c *client) error { return c.answer(c.nonces[len(c.nonces)-1], "not valid") }

// stale accepts the first response of the stream again.
func stale(c *client) error { return c.answer(c.nonces[0], "") }

// invented accepts a response that does not exist.
func invented(c *client) error { return c.answer("no such nonce", "") }

func (c *client) answer(nonce, why string) error {
	r := &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: nonce}
	if why != "" {
		r.ErrorDetail = &statusv1.Status{Code: int32(codes.InvalidArgument), Message: why}
	}
	return c.send(r)
}

// expect waits for a response with exactly these changes: name=content or, if it is removed, -name. The content's
// version must be the same whenever it is sent, and differ from other contents.
func expect(changes ...string) step {
	return func(c *client) error {
		select {
		case r := <-c.got:
			return c.take(r, changes)
		case err := <-c.ended:
			return fmt.Errorf("the stream has ended: %w", err)
		case <-time.After(patience):
			return fmt.Errorf("nothing was sent, want %v", changes)
		}
	}
}

// take compares a response with the expected changes, and applies it.
func (c *client) take(r *discoveryv3.DeltaDiscoveryResponse, changes []string) error {
	switch {
	case r.GetTypeUrl() != c.TypeURL:
		return fmt.Errorf("a response of type %q was sent", r.GetTypeUrl())
	case r.GetNonce() == "" || slices.Contains(c.nonces, r.GetNonce()):
		return fmt.Errorf("the nonce %q is empty or was used before", r.GetNonce())
	}
	c.nonces = append(c.nonces, r.GetNonce())
	contents, removed := map[string]string{}, map[string]bool{}
	for _, resource := range r.GetResources() {
		if _, twice := contents[resource.GetName()]; twice {
			return fmt.Errorf("%s is in the response twice", resource.GetName())
		}
		contents[resource.GetName()], c.has[resource.GetName()] = resource.GetVersion(), resource.GetVersion()
	}
	for _, name := range r.GetRemovedResources() {
		removed[name] = true
		delete(c.has, name)
	}
	var got []string
	for _, name := range tableNames {
		if version, sent := contents[c.name(name)]; sent {
			got = append(got, name+"="+c.content(name, version, changes))
		}
		if removed[c.name(name)] {
			got = append(got, "-"+name)
		}
	}
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(changes)); !slices.Equal(got, want) {
		return fmt.Errorf("sent %v, want %v", got, want)
	}
	return nil
}

// tableNames are the names in the table.
var tableNames = []string{"a", "b", "c"}

// content returns the number of the content with a version. A version that was not sent before is the expected content,
// unless this one was sent with another version.
func (c *client) content(name, version string, changes []string) string {
	for content, other := range c.contents {
		if other == version && strings.HasPrefix(content, name+"=") {
			return strings.TrimPrefix(content, name+"=")
		}
	}
	for _, change := range changes {
		if number, is := strings.CutPrefix(change, name+"="); is && c.contents[change] == "" {
			c.contents[change] = version
			return number
		}
	}
	return "an unknown content"
}

// quiet fails if a response is sent.
func quiet(c *client) error {
	select {
	case r := <-c.got:
		return fmt.Errorf("sent %v, without %v", r.GetResources(), r.GetRemovedResources())
	case err := <-c.ended:
		return fmt.Errorf("the stream has ended: %w", err)
	case <-time.After(pause):
		return nil
	}
}

// away ends the stream.
func away(c *client) error {
	c.cancel()
	<-c.ended //nolint:errcheck // it is the cancellation
	return nil
}
