package collect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
)

// formMark separates a version from a form in versions of pkg/xdsproxy.
const formMark = " as "

// ErrNotConnected means that no server that answered has the node.
var ErrNotConnected = errors.New(
	"its agent is not connected to any xds-server that answered, so it cannot be queried for what its Envoy runs",
)

// ErrNoRelay means that the answer is of a version that does not report the state of relays.
var ErrNoRelay = errors.New("its agent or its xds-server is of an earlier version, which does not report it")

// Dump queries the agent of a node for what its Envoy runs: all resources of this installation, or the ones with the
// given names. An agent answers one query at a time. The error wraps ErrNotConnected if the node is not connected to
// any server.
func (s *Servers) Dump(ctx context.Context, node string, names ...string) (Dump, error) {
	request := &inspectv1.DumpRequest{Node: node, Names: names}
	running, server, err := dumpOf(ctx, s, request, func(packed io.Reader) ([]Running, error) {
		return readDump(packed, sizeOf(node))
	})
	if err != nil {
		return Dump{}, fmt.Errorf("asking what the Envoy of %s runs: %w", node, err)
	}
	return Dump{Node: node, Server: server, Running: running}, nil
}

// Relay queries the agent of a node for the state of its relay, as text for people who look for a fault: how
// xds-servers, Envoy and the disk differ. It needs no answer of Envoy. The error wraps ErrNotConnected if the node is
// not connected to any server, and ErrNoRelay if its agent or the server is of an earlier version.
func (s *Servers) Relay(ctx context.Context, node string) (string, error) {
	text, _, err := dumpOf(ctx, s, &inspectv1.DumpRequest{Node: node, Relay: true}, readRelay)
	if err != nil {
		return "", fmt.Errorf("asking for the relay of %s: %w", node, err)
	}
	return text, nil
}

// dumpOf queries the agent of a node, reads its answer, and returns also the name of the server that has it. The error
// wraps ErrNotConnected if no server has.
func dumpOf[T any](
	ctx context.Context, s *Servers, request *inspectv1.DumpRequest, read func(packed io.Reader) (T, error),
) (value T, server string, err error) {
	values := make([]*T, len(s.all))
	errs := s.each(ctx, func(ctx context.Context, i int, c *connection) error {
		stream, err := inspectv1.NewInspectClient(c.conn).Dump(ctx, request)
		if err != nil {
			return err
		}
		answer, err := read(&parts{stream: stream})
		if status.Code(err) == codes.NotFound {
			return nil // it may be with another
		}
		if err == nil {
			values[i] = &answer
		}
		return err
	})
	for i, found := range values {
		if found != nil {
			return *found, s.all[i].name, nil
		}
	}
	return value, "", cmp.Or(errors.Join(errs...), ErrNotConnected)
}

// state is a version of a resource in Envoy's dump.
type state struct {
	Version  string          `json:"version_info"`
	Cluster  json.RawMessage `json:"cluster"`
	Listener json.RawMessage `json:"listener"`
	Updated  time.Time       `json:"last_updated"`
}

// entry is an envoy.admin.v3.ClustersConfigDump.DynamicCluster or a ListenersConfigDump.DynamicListener.
type entry struct {
	state
	Name     string `json:"name"` // of a listener
	Active   *state `json:"active_state"`
	Warming  *state `json:"warming_state"`
	Draining *state `json:"draining_state"`
	Status   string `json:"client_status"`
	Error    *struct {
		Details string `json:"details"`
	} `json:"error_state"`
}

func (e *entry) running() (all []Running) {
	add := func(typeURL, state string, s *state, config json.RawMessage) {
		r := Running{TypeURL: typeURL, Name: e.Name, State: state, Updated: s.Updated, Config: config}
		r.Version, r.Form, _ = strings.Cut(s.Version, formMark)
		if r.Name == "" {
			var named struct{ Name string }
			_ = json.Unmarshal(config, &named) // then it has none
			r.Name = named.Name
		}
		if e.Error != nil {
			r.Refusal = e.Error.Details
		}
		all = append(all, r)
	}
	if e.Cluster != nil {
		at := "active"
		if e.Status == "REQUESTED" {
			at = "warming"
		}
		add(resourcev3.ClusterType, at, &e.state, e.Cluster)
		return all
	}
	for _, s := range []struct {
		at string
		*state
	}{{"active", e.Active}, {"warming", e.Warming}, {"draining", e.Draining}} {
		if s.state != nil {
			add(resourcev3.ListenerType, s.at, s.state, s.Listener)
		}
	}
	if len(all) == 0 && e.Error != nil {
		add(resourcev3.ListenerType, "error", &e.state, nil)
	}
	return all
}
