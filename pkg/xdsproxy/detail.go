package xdsproxy

import (
	"maps"
	"slices"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Bounds of the details of a NACK, which must not exceed what an xds-server accepts from an edge.
const (
	maxGroups      = 16      // groups of resources that were rejected together
	maxDetailNames = 16      // names of one group
	maxDetailText  = 1 << 10 // bytes of the reason of one group
)

// detailed adds the affected resources to a reason: an envoy.service.status.v3.ClientConfig with their names and
// versions. The first resource has the reason and the time at which Envoy or the proxy rejected it; at is nil if the
// time is not known. An ADS client answers a whole response, so the xds-server could not find out otherwise which
// resources Envoy has.
func detailed(why *statusv1.Status, k kind, rejected map[string]string, at *timestamppb.Timestamp) *statusv1.Status {
	text := why.GetMessage()
	if len(text) > maxDetailText {
		text = bounded(text[:maxDetailText])
	}
	group := &statusv3.ClientConfig{}
	names := slices.Sorted(maps.Keys(rejected))
	for i, name := range names[:min(len(names), maxDetailNames)] {
		r := &statusv3.ClientConfig_GenericXdsConfig{
			TypeUrl: k.typeURL(), Name: name, ClientStatus: adminv3.ClientResourceStatus_NACKED,
			ErrorState: &adminv3.UpdateFailureState{VersionInfo: rejected[name]},
		}
		if i == 0 {
			r.ErrorState.Details, r.ErrorState.LastUpdateAttempt = text, at
		}
		group.GenericXdsConfigs = append(group.GenericXdsConfigs, r)
	}
	packed, err := anypb.New(group)
	if err != nil {
		return why // a name with invalid UTF-8, which none of our resources has
	}
	detailed := proto.CloneOf(why)
	detailed.Details = []*anypb.Any{packed}
	return detailed
}

// versions returns the versions of changes by name.
func (s set) versions() map[string]string {
	all := make(map[string]string, len(s))
	for name, res := range s {
		all[name] = res.version()
	}
	return all
}

// details returns the details of several reasons, without duplicates.
func details(errs []*statusv1.Status) (all []*anypb.Any) {
	seen := map[*statusv1.Status]bool{}
	for _, err := range errs {
		if !seen[err] && len(all)+len(err.GetDetails()) <= maxGroups {
			seen[err] = true
			all = append(all, err.GetDetails()...)
		}
	}
	return all
}
