package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// Dump queries the agent of a node for what its Envoy runs: all resources of this installation, or the ones with the
// given names. An agent answers one query at a time. The error wraps ErrNotConnected if the node is not connected to
// any server.
func (s *Servers) Dump(ctx context.Context, node string, names ...string) (Dump, error) {
	dumps := make([]*Dump, len(s.all))
	errs := s.each(ctx, func(ctx context.Context, i int, c *connection) error {
		stream, err := inspectv1.NewInspectClient(c.conn).Dump(ctx, &inspectv1.DumpRequest{Node: node, Names: names})
		if err != nil {
			return err
		}
		running, err := readDump(&parts{stream: stream}, sizeOf(node))
		if status.Code(err) == codes.NotFound {
			return nil // it may be with another
		}
		if err == nil {
			dumps[i] = &Dump{Node: node, Server: c.name, Running: running}
		}
		return err
	})
	for _, dump := range dumps {
		if dump != nil {
			return *dump, nil
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Dump{}, fmt.Errorf("asking what the Envoy of %s runs: %w", node, err)
	}
	return Dump{}, fmt.Errorf("asking what the Envoy of %s runs: %w", node, ErrNotConnected)
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
