package xdsproxy

import (
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
)

// nack takes over that Envoy refuses a batch. Of several changes Envoy applies those that are good, but says only in words
// which are not, and then does not know its versions. So they are sent again in halves until each that is refused is alone.
// Then Envoy has the others, knows it, and the xds-server is told what Envoy says of each.
func (s *session) nack(k kind, f *batch, detail *statusv1.Status) {
	log := s.proxy.log.With("type_url", k.typeURL(), "upstream", f.share.upstream())
	switch {
	case len(f.names) > 1:
		log.Debug("resources rejected by Envoy, bisecting them", "resources", len(f.names), "error", bounded(detail.GetMessage()))
		t, half := s.tables[k], len(f.names)/2
		t.parts = append([]*batch{f.part(f.names[:half]), f.part(f.names[half:])}, t.parts...)
	case len(f.names) == 1 && f.share != nil:
		log.Error("resource rejected by Envoy", "name", f.names[0], "error", bounded(detail.GetMessage()))
		f.share.refusedByEnvoy(f.names[0], f.changes[f.names[0]], &statusv1.Status{Code: detail.GetCode(), Message: bounded(detail.GetMessage())})
	default:
		log.Error("response rejected by Envoy", "names", f.names, "error", bounded(detail.GetMessage()))
	}
}

func (b *batch) part(names []string) *batch {
	return &batch{share: b.share, names: names}
}

// refusedByEnvoy gives up one change. Envoy keeps what it accepted before, unless that is what it refuses now.
func (s *share) refusedByEnvoy(name string, res *resource, why *statusv1.Status) {
	if s.of.forgotten || s.offered[name].version() != res.version() {
		return // there is something newer by now
	}
	instead := set{}
	if old := s.accepted[name]; old.version() != res.version() {
		instead[name] = old
	} else {
		s.accept(name, nil) // by an older Envoy, say
	}
	s.refuse(set{name: res}, why, false, instead)
	s.finish()
}
