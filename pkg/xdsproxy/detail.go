package xdsproxy

import (
	"maps"
	"slices"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

// Bounds of a NACK, which must not exceed what an xds-server accepts from an edge.
const (
	maxMessageText = 4 << 10 // bytes of all reasons
	maxGroups      = 16      // groups of resources that were rejected together
	maxDetailNames = 16      // names of one group
	maxDetailText  = 1 << 10 // bytes of the reason of one group
)

// statusOf returns the error of a NACK; nil: ACK.
func statusOf(k relay.Kind, rejections []*relay.Rejection) *statusv1.Status {
	if len(rejections) == 0 {
		return nil
	}
	why := &statusv1.Status{Code: int32(rejections[0].Code)}
	var reasons []string
	for _, r := range rejections {
		if !slices.Contains(reasons, r.Message) {
			reasons = append(reasons, r.Message)
		}
		if detail := detailed(k, r); detail != nil && len(why.Details) < maxGroups {
			why.Details = append(why.Details, detail)
		}
	}
	why.Message = relay.Bounded(strings.Join(reasons, "; "), maxMessageText)
	return why
}

// detailed returns the resources that a rejection affects: an envoy.service.status.v3.ClientConfig with their names and
// versions. The first resource has the reason and the time of the rejection. An ADS client answers a whole response, so
// the xds-server could not find out otherwise which resources Envoy has. It returns nil for a name with invalid UTF-8,
// which none of our resources has.
func detailed(k relay.Kind, rejection *relay.Rejection) *anypb.Any {
	group := &statusv3.ClientConfig{}
	names := slices.Sorted(maps.Keys(rejection.Versions))
	for i, name := range names[:min(len(names), maxDetailNames)] {
		state := &adminv3.UpdateFailureState{VersionInfo: rejection.Versions[name]}
		if i == 0 {
			state.Details = relay.Bounded(rejection.Message, maxDetailText)
			if !rejection.At.IsZero() {
				state.LastUpdateAttempt = timestamppb.New(rejection.At)
			}
		}
		group.GenericXdsConfigs = append(group.GenericXdsConfigs, &statusv3.ClientConfig_GenericXdsConfig{
			TypeUrl: k.TypeURL(), Name: name, ClientStatus: adminv3.ClientResourceStatus_NACKED, ErrorState: state,
		})
	}
	detail, err := anypb.New(group)
	if err != nil {
		return nil
	}
	return detail
}
