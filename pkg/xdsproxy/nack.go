package xdsproxy

import (
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
)

// nack handles Envoy's rejection of a batch. Of several changes Envoy applies the valid ones, but names the invalid
// ones only in a text; the proxy then does not know the versions that Envoy has. So it sends them again in halves
// until each rejected change is alone. Then Envoy has the others, and the xds-server gets Envoy's reason for each.
func (s *session) nack(k kind, f *batch, detail *statusv1.Status) {
	log := s.proxy.log.With("type_url", k.typeURL(), "upstream", f.share.upstream())
	switch {
	case len(f.names) > 1:
		log.Debug(
			"resources rejected by Envoy, bisecting them", "resources", len(f.names), "error", bounded(detail.GetMessage()),
		)
		t, half := s.tables[k], len(f.names)/2
		t.parts = append([]*batch{f.part(f.names[:half]), f.part(f.names[half:])}, t.parts...)
	case len(f.names) == 1 && f.share != nil:
		log.Error("resource rejected by Envoy", "name", f.names[0], "error", bounded(detail.GetMessage()))
		f.share.rejectedByEnvoy(
			f.names[0], f.changes[f.names[0]], &statusv1.Status{Code: detail.GetCode(), Message: bounded(detail.GetMessage())},
		)
	default:
		log.Error("response rejected by Envoy", "names", f.names, "error", bounded(detail.GetMessage()))
	}
}

func (b *batch) part(names []string) *batch {
	return &batch{share: b.share, names: names}
}

// rejectedByEnvoy withdraws one rejected change. Envoy keeps what it accepted before, unless that is what it rejects
// now.
func (s *share) rejectedByEnvoy(name string, res *resource, why *statusv1.Status) {
	if s.of.removed || s.offered[name].version() != res.version() {
		return // there is a newer version
	}
	instead := set{}
	if old := s.accepted[name]; old.version() != res.version() {
		instead[name] = old
	} else {
		s.accept(name, nil) // it was accepted by an older Envoy, for example
	}
	s.reject(set{name: res}, why, false, instead)
	s.finish()
}
