package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// Nodes returns the gateways and edges that are connected to the servers, with what they were sent, and for a single
// node also the contents. A node that moves between servers may be listed twice for some seconds. The error joins the
// errors of the servers that did not answer; the results of the others are returned too.
func (s *Servers) Nodes(ctx context.Context, node string) ([]Node, error) {
	request := &statusv3.ClientStatusRequest{ExcludeResourceContents: node == ""}
	if node != "" {
		request.NodeMatchers = []*matcherv3.NodeMatcher{{NodeId: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: model.NodeID(node)},
		}}}
	}
	nodes, errs := s.nodes(ctx, func(ctx context.Context, c *connection) ([]*statusv3.ClientConfig, error) {
		answer, err := statusv3.NewClientStatusDiscoveryServiceClient(c.conn).FetchClientStatus(ctx, request)
		return answer.GetConfig(), err
	})
	return nodes, errors.Join(errs...)
}

// Resources returns each connected gateway, and each edge that has any of the resources with these names. Each has
// the resources that it was sent, with their contents.
func (s *Servers) Resources(ctx context.Context, names ...string) ([]Node, error) {
	nodes, errs := s.resources(ctx, names)
	return nodes, errors.Join(errs...)
}

// resources is Resources with the error of each server.
func (s *Servers) resources(ctx context.Context, names []string) ([]Node, []error) {
	return s.nodes(ctx, func(ctx context.Context, c *connection) (all []*statusv3.ClientConfig, err error) {
		stream, err := inspectv1.NewInspectClient(c.conn).
			Resources(ctx, &inspectv1.ResourcesRequest{Names: names, Contents: true})
		for err == nil {
			var part *inspectv1.ResourcesPart
			if part, err = stream.Recv(); err == nil {
				config := &statusv3.ClientConfig{}
				if err = part.GetNode().UnmarshalTo(config); err == nil {
					all = append(all, config)
				}
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return all, err
	})
}

// nodes returns the nodes in the answers of all servers, and the error of each server.
func (s *Servers) nodes(
	ctx context.Context, ask func(context.Context, *connection) ([]*statusv3.ClientConfig, error),
) ([]Node, []error) {
	answers := make([][]*statusv3.ClientConfig, len(s.all))
	errs := s.each(ctx, func(ctx context.Context, i int, c *connection) (err error) {
		answers[i], err = ask(ctx, c)
		return err
	})
	var all []Node
	for i, c := range s.all {
		for _, config := range answers[i] {
			node, err := nodeOf(config)
			if err != nil {
				errs[i] = errors.Join(errs[i], fmt.Errorf("reading the answer of xds-server %s: %w", c.name, err))
				continue
			}
			node.Server = c.name
			all = append(all, node)
		}
	}
	slices.SortFunc(all, func(a, b Node) int {
		return cmp.Or(
			-strings.Compare(string(a.Role), string(b.Role)), strings.Compare(a.Name, b.Name),
			strings.Compare(a.Server, b.Server),
		)
	})
	return all, errs
}

func nodeOf(config *statusv3.ClientConfig) (Node, error) {
	name, ok := model.ParseNodeID(config.GetNode().GetId())
	if !ok {
		return Node{}, fmt.Errorf("%q is not a node id", config.GetNode().GetId())
	}
	metadata := config.GetNode().GetMetadata().GetFields()
	node := Node{
		Name: name, Role: model.Role(metadata[inspectv1.MetadataRole].GetStringValue()),
		ID:      metadata[inspectv1.MetadataTunnelID].GetStringValue(),
		Profile: metadata[inspectv1.MetadataProfile].GetStringValue(),
		Version: metadata[inspectv1.MetadataVersion].GetStringValue(), Connected: parseTime(
			metadata[inspectv1.MetadataConnected].GetStringValue()),
	}
	for _, r := range config.GetGenericXdsConfigs() {
		node.Resources = append(node.Resources, resourceOf(r))
	}
	return node, nil
}

func resourceOf(r *statusv3.ClientConfig_GenericXdsConfig) Resource {
	resource := Resource{
		TypeURL: r.GetTypeUrl(), Name: r.GetName(), Version: r.GetVersionInfo(), Status: Stale,
		Updated: timeOf(r.GetLastUpdated()), Config: r.GetXdsConfig(),
	}
	switch r.GetClientStatus() {
	case adminv3.ClientResourceStatus_ACKED:
		resource.Status = Synced
	case adminv3.ClientResourceStatus_NACKED:
		resource.Status = Rejected
		resource.Refusal, resource.Refused = r.GetErrorState().GetDetails(), r.GetErrorState().GetVersionInfo()
		resource.Since = timeOf(r.GetErrorState().GetLastUpdateAttempt())
	default:
		resource.Since = resource.Updated
	}
	return resource
}

func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return t
}
