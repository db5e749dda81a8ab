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

// Bounds of what a NACK says beside its message, which has to fit in what an xds-server takes from an edge.
const (
	maxGroups      = 16      // of resources that were refused together
	maxDetailNames = 16      // of one group
	maxDetailText  = 1 << 10 // of its reason
)

// detailed adds to a reason which resources it is about: an envoy.service.status.v3.ClientConfig with their names and versions, and, at the
// first of them, the reason and when Envoy or the proxy came to it; without times: that is not known any more. An ADS client answers for a
// whole response, so the xds-server could not tell otherwise what Envoy has of it.
func detailed(why *statusv1.Status, k kind, refused map[string]string, at *timestamppb.Timestamp) *statusv1.Status {
	text := why.GetMessage()
	if len(text) > maxDetailText {
		text = bounded(text[:maxDetailText])
	}
	group := &statusv3.ClientConfig{}
	names := slices.Sorted(maps.Keys(refused))
	for i, name := range names[:min(len(names), maxDetailNames)] {
		r := &statusv3.ClientConfig_GenericXdsConfig{
			TypeUrl: k.typeURL(), Name: name, ClientStatus: adminv3.ClientResourceStatus_NACKED,
			ErrorState: &adminv3.UpdateFailureState{VersionInfo: refused[name]},
		}
		if i == 0 {
			r.ErrorState.Details, r.ErrorState.LastUpdateAttempt = text, at
		}
		group.GenericXdsConfigs = append(group.GenericXdsConfigs, r)
	}
	packed, err := anypb.New(group)
	if err != nil {
		return why // a name that is no UTF-8, which no resource of ours has
	}
	detailed := proto.CloneOf(why)
	detailed.Details = []*anypb.Any{packed}
	return detailed
}

// versions are those of changes, by name.
func (s set) versions() map[string]string {
	all := make(map[string]string, len(s))
	for name, res := range s {
		all[name] = res.version()
	}
	return all
}

// details are those of several reasons.
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
