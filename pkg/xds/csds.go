package xds

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxStatus is how large an answer may be: what three gateways with 10,000 Envoy clusters each make without contents, or one with them.
const maxStatus = 48 << 20

var errStatusTooLarge = status.Errorf(codes.ResourceExhausted, "the answer would be larger than %d MiB: ask for one node by node_matchers, or set exclude_resource_contents", maxStatus>>20)

// Status is the standard client status discovery service. Nothing is kept for it but what waits for an answer and what was refused:
// all else follows from what is published. Private keys are nowhere in it, for they never leave the machines that made them.
type Status struct {
	statusv3.UnimplementedClientStatusDiscoveryServiceServer

	server *Server
}

// Status returns what tells of this server's nodes.
func (s *Server) Status() *Status { return &Status{server: s} }

// FetchClientStatus implements the service.
func (s *Status) FetchClientStatus(_ context.Context, r *statusv3.ClientStatusRequest) (*statusv3.ClientStatusResponse, error) {
	return s.respond(r)
}

// StreamClientStatus implements the service.
func (s *Status) StreamClientStatus(stream statusv3.ClientStatusDiscoveryService_StreamClientStatusServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		response, err := s.respond(r)
		if err != nil {
			return err
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

func (s *Status) respond(r *statusv3.ClientStatusRequest) (*statusv3.ClientStatusResponse, error) {
	matches, err := nodeMatcher(r.GetNodeMatchers())
	if err != nil {
		return nil, err
	}
	response := &statusv3.ClientStatusResponse{}
	size := 0
	for _, n := range s.server.nodes() {
		node := n.describe()
		if !matches(node) {
			continue
		}
		config := clientConfig(node, n.configs(nil, !r.GetExcludeResourceContents()))
		if size += proto.Size(config); size > maxStatus {
			return nil, errStatusTooLarge
		}
		response.Config = append(response.Config, config)
	}
	return response, nil
}

// Resources hands on each gateway, and each edge that has any of the resources with some names, with these alone.
func (s *Status) Resources(names []string, contents bool, take func(*statusv3.ClientConfig) error) error {
	for _, n := range s.server.nodes() {
		configs := n.configs(names, contents)
		if len(configs) == 0 && n.subject.Role != model.RoleGateway {
			continue
		}
		if err := take(clientConfig(n.describe(), configs)); err != nil {
			return err
		}
	}
	return nil
}

// clientConfig is what is told of a node. By the scope clients that expect one program alone, as grpcdebug, tell nodes from each other.
func clientConfig(node *corev3.Node, configs []*statusv3.ClientConfig_GenericXdsConfig) *statusv3.ClientConfig {
	return &statusv3.ClientConfig{Node: node, ClientScope: node.GetId(), GenericXdsConfigs: configs}
}

// node is a gateway or an edge with a stream.
type node struct {
	server   *Server
	subject  model.Subject
	progress *[2]progress
	gateway  *stream // of a gateway
	edge     *edge   // of an edge
}

// nodes are those with streams, in order.
func (s *Server) nodes() []node {
	s.mu.RLock()
	all := make([]node, 0, len(s.hosts)+len(s.edges))
	for st := range s.hosts {
		all = append(all, node{s, st.subject, &st.progress, st, nil})
	}
	for e := range s.edges {
		all = append(all, node{s, e.subject, &e.progress, nil, e})
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b node) int { return strings.Compare(a.subject.Node, b.subject.Node) })
	return all
}

func (n node) describe() *corev3.Node {
	version, since := n.progress[0].sight.who()
	text := func(s string) *structpb.Value { return structpb.NewStringValue(s) }
	fields := map[string]*structpb.Value{
		inspectv1.MetadataRole: text(string(n.subject.Role)), inspectv1.MetadataProfile: text(n.server.profileOf(n.subject)),
	}
	if n.subject.ID != "" {
		fields[inspectv1.MetadataTunnelID] = text(n.subject.ID)
	}
	if version != "" {
		fields[inspectv1.MetadataVersion] = text(version)
	}
	if !since.IsZero() {
		fields[inspectv1.MetadataConnected] = text(since.UTC().Format(time.RFC3339))
	}
	return &corev3.Node{Id: n.subject.NodeID(), Cluster: string(n.subject.Role), Metadata: &structpb.Struct{Fields: fields}}
}

// published is a resource as it is published, and when, as far as that is known.
type published struct {
	name, version string
	body          *anypb.Any
	at            time.Time
	behind        bool // the node was sent another version, or none
}

// configs are a node's resources with some names, or all of them for nil.
func (n node) configs(names []string, contents bool) (all []*statusv3.ClientConfig_GenericXdsConfig) {
	for i, typeURL := range order {
		o := n.progress[i].sight.outcome()
		for _, r := range n.published(typeURL, names) {
			config := o.config(typeURL, r)
			if contents {
				config.XdsConfig = r.body
			}
			all = append(all, config)
		}
	}
	return all
}

// published are the resources of one type that are published for a node, in order.
func (n node) published(typeURL string, names []string) []published {
	s := n.server
	wanted := func(name string) bool { return names == nil || slices.Contains(names, name) }
	if n.gateway != nil && typeURL == s.gateways.typeURL {
		return s.gateways.published(n.gateway.reader, wanted, &s.figures.marks)
	}
	resources := n.resources(typeURL)
	var all []published
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		value, err := cachev3.MarshalResource(resources[name])
		if err != nil || !wanted(name) {
			continue
		}
		all = append(all, published{name: name, version: cachev3.HashResource(value), body: &anypb.Any{TypeUrl: typeURL, Value: value}})
	}
	return all
}

// resources are those of one type that only this node has.
func (n node) resources(typeURL string) map[string]types.Resource {
	if n.gateway != nil { // its caches are there since it is in the server's table
		if cache := n.gateway.caches[typeURL]; cache != nil {
			return cache.GetResources()
		}
		return nil
	}
	n.edge.mu.Lock()
	named, dial := n.edge.named, n.edge.dial
	n.edge.mu.Unlock()
	rendering, cluster, ok := n.server.servedTo(n.subject)
	if !ok || !named {
		return nil
	}
	return n.server.edgeResources(rendering, cluster, n.subject.Node, dial)[typeURL]
}

// published are the resources of a feed with some names, in order, as one stream has them.
func (f *feed) published(by *reader, wanted func(string) bool, marks *marks) []published {
	f.mu.Lock()
	numbers := make(map[string]uint64, len(f.changed))
	for i, name := range f.changed {
		numbers[name] = f.last - uint64(len(f.changed)-1-i)
	}
	all := make([]published, 0, 16)
	bodies := map[string]*discoveryv3.Resource{} // which never change
	for name := range f.resources {
		if r := f.of(by, name); wanted(name) {
			all = append(all, published{name: name, version: r.GetVersion(), behind: by.known[name] != r.GetVersion()})
			bodies[name] = r
		}
	}
	f.mu.Unlock()
	slices.SortFunc(all, func(a, b published) int { return strings.Compare(a.name, b.name) })
	for i := range all {
		all[i].body = bodies[all[i].name].GetResource()
		if number := numbers[all[i].name]; number != 0 {
			all[i].at = marks.when(number)
		}
	}
	return all
}

// when is when a change was made; zero: that is not known any more.
func (m *marks) when(number uint64) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.all, number, func(a mark, number uint64) int {
		switch {
		case a.last < number:
			return -1
		case a.last > number:
			return 1
		}
		return 0
	})
	if i == len(m.all) || i == 0 && len(m.all) >= maxMarks || m.all[i].at == 0 {
		return time.Time{}
	}
	return time.Unix(0, m.all[i].at)
}

// config is what became of a resource.
func (o outcome) config(typeURL string, r published) *statusv3.ClientConfig_GenericXdsConfig {
	config := &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: typeURL, Name: r.name, VersionInfo: r.version}
	at := r.at
	if at.IsZero() {
		at = o.sent
	}
	if !at.IsZero() {
		config.LastUpdated = timestamppb.New(at)
	}
	refused := o.refusals[r.name]
	switch {
	case !o.asked:
		config.ConfigStatus, config.ClientStatus = statusv3.ConfigStatus_NOT_SENT, adminv3.ClientResourceStatus_REQUESTED
	case refused != nil && (refused.versions[r.name] == r.version || refused.versions[r.name] == ""):
		config.ConfigStatus, config.ClientStatus = statusv3.ConfigStatus_ERROR, adminv3.ClientResourceStatus_NACKED
		config.ErrorState = &adminv3.UpdateFailureState{Details: refused.why, VersionInfo: r.version, LastUpdateAttempt: timestamppb.New(refused.since)}
	case r.behind || o.pending[r.name]:
		config.ConfigStatus, config.ClientStatus = statusv3.ConfigStatus_STALE, adminv3.ClientResourceStatus_REQUESTED
	default:
		config.ConfigStatus, config.ClientStatus = statusv3.ConfigStatus_SYNCED, adminv3.ClientResourceStatus_ACKED
	}
	return config
}
