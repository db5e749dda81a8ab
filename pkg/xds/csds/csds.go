// Package csds serves Envoy's client status discovery service: which resources are published for each connected node,
// and what the node answered. In go the nodes with an open ADS stream, each with its published resources and its
// Answers; out come ClientConfig messages. It keeps only names that await an answer and rejections. It does not know
// which callers may use it, how resources are built, or how they are sent.
package csds

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxStatus bounds an answer: three gateways with 10,000 Envoy clusters each fit without contents, or one with
// contents.
const maxStatus = 48 << 20

var errStatusTooLarge = status.Errorf(codes.ResourceExhausted,
	"the answer would be larger than %d MiB: ask for one node by node_matchers, or set exclude_resource_contents",
	maxStatus>>20)

// Node is a gateway or an edge with an open ADS stream.
type Node struct {
	Subject model.Subject
	Profile string // that the node runs
	// Types are the resource types of the node, in the order of sending. The first has what the node states
	// about itself.
	Types []Type
}

// Type is one resource type of a Node.
type Type struct {
	URL     string
	Answers *Answers
	// Published returns the published resources whose names wanted accepts, in name order.
	Published func(wanted func(name string) bool) []Resource
}

// Resource is one published resource of a node.
type Resource struct {
	Name, Version string
	Body          *anypb.Any
	At            time.Time // when it was published; zero: not recorded
	Behind        bool      // the node was sent another version, or none
}

// Service is the standard client status discovery service. Its answers contain no private key: keys stay on the
// machines that generate them.
type Service struct {
	statusv3.UnimplementedClientStatusDiscoveryServiceServer

	nodes func() []Node
}

// NewService returns the service of the nodes that a function lists, in the order of that list.
func NewService(nodes func() []Node) *Service { return &Service{nodes: nodes} }

// FetchClientStatus implements the service.
func (s *Service) FetchClientStatus(
	_ context.Context, r *statusv3.ClientStatusRequest,
) (*statusv3.ClientStatusResponse, error) {
	return s.respond(r)
}

// StreamClientStatus implements the service.
func (s *Service) StreamClientStatus(stream statusv3.ClientStatusDiscoveryService_StreamClientStatusServer) error {
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

func (s *Service) respond(r *statusv3.ClientStatusRequest) (*statusv3.ClientStatusResponse, error) {
	matches, err := nodeMatcher(r.GetNodeMatchers())
	if err != nil {
		return nil, err
	}
	response := &statusv3.ClientStatusResponse{}
	size := 0
	for _, n := range s.nodes() {
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

// Resources calls take with each gateway, and with each edge that has one of the named resources; both with these
// resources only. It stops at the first error of take and returns it.
func (s *Service) Resources(names []string, contents bool, take func(*statusv3.ClientConfig) error) error {
	for _, n := range s.nodes() {
		configs := n.configs(names, contents)
		if len(configs) == 0 && n.Subject.Role != model.RoleGateway {
			continue
		}
		if err := take(clientConfig(n.describe(), configs)); err != nil {
			return err
		}
	}
	return nil
}

// clientConfig is the message about one node. Clients that expect one program only, such as grpcdebug, tell nodes apart
// by the scope.
func clientConfig(node *corev3.Node, configs []*statusv3.ClientConfig_GenericXdsConfig) *statusv3.ClientConfig {
	return &statusv3.ClientConfig{Node: node, ClientScope: node.GetId(), GenericXdsConfigs: configs}
}

func (n Node) describe() *corev3.Node {
	version, since := n.Types[0].Answers.agentVersion()
	text := func(s string) *structpb.Value { return structpb.NewStringValue(s) }
	fields := map[string]*structpb.Value{
		inspectv1.MetadataRole: text(string(n.Subject.Role)), inspectv1.MetadataProfile: text(n.Profile),
	}
	if n.Subject.ID != "" {
		fields[inspectv1.MetadataTunnelID] = text(n.Subject.ID)
	}
	if version != "" {
		fields[inspectv1.MetadataVersion] = text(version)
	}
	if !since.IsZero() {
		fields[inspectv1.MetadataConnected] = text(since.UTC().Format(time.RFC3339))
	}
	return &corev3.Node{
		Id: n.Subject.NodeID(), Cluster: string(n.Subject.Role), Metadata: &structpb.Struct{Fields: fields},
	}
}

// configs are the node's resources with some names; all of them for nil.
func (n Node) configs(names []string, contents bool) (all []*statusv3.ClientConfig_GenericXdsConfig) {
	wanted := func(name string) bool { return names == nil || slices.Contains(names, name) }
	for _, t := range n.Types {
		o := t.Answers.outcome()
		for _, r := range t.Published(wanted) {
			config := o.config(t.URL, r)
			if contents {
				config.XdsConfig = r.Body
			}
			all = append(all, config)
		}
	}
	return all
}

// config is the status of one resource.
func (o outcome) config(typeURL string, r Resource) *statusv3.ClientConfig_GenericXdsConfig {
	config := &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: typeURL, Name: r.Name, VersionInfo: r.Version}
	at := r.At
	if at.IsZero() {
		at = o.sent
	}
	if !at.IsZero() {
		config.LastUpdated = timestamppb.New(at)
	}
	refused := o.refusals[r.Name]
	switch {
	case !o.asked:
		config.ConfigStatus, config.ClientStatus = statusv3.ConfigStatus_NOT_SENT, adminv3.ClientResourceStatus_REQUESTED
	case refused != nil && (refused.versions[r.Name] == r.Version || refused.versions[r.Name] == ""):
		config.ConfigStatus, config.ClientStatus = statusv3.ConfigStatus_ERROR, adminv3.ClientResourceStatus_NACKED
		config.ErrorState = &adminv3.UpdateFailureState{
			Details: refused.why, VersionInfo: r.Version, LastUpdateAttempt: timestamppb.New(refused.since),
		}
	case r.Behind || o.pending[r.Name]:
		config.ConfigStatus, config.ClientStatus = statusv3.ConfigStatus_STALE, adminv3.ClientResourceStatus_REQUESTED
	default:
		config.ConfigStatus, config.ClientStatus = statusv3.ConfigStatus_SYNCED, adminv3.ClientResourceStatus_ACKED
	}
	return config
}
