package xdsproxy_test

import (
	"maps"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// forms is an Override that stores the form of each Envoy cluster.
type forms struct {
	mu    sync.Mutex
	forms map[string]string
}

func (w *forms) Form(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.forms[name]
}

func (w *forms) Apply(name, form string, resource *anypb.Any) *anypb.Any {
	if form == "" {
		return resource
	}
	packed, err := anypb.New(&clusterv3.Cluster{Name: name, AltStatName: form})
	if err != nil {
		panic(err)
	}
	return packed
}

func (w *forms) put(b *bed, name, form string) {
	w.mu.Lock()
	w.forms = maps.Clone(w.forms)
	if w.forms == nil {
		w.forms = map[string]string{}
	}
	w.forms[name] = form
	w.mu.Unlock()
	b.Reapply([]string{name})
}

func TestTheFormOfAnEnvoyCluster(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, named(cluster("c1", 1), cluster("c2", 1)), named(listener("l")))
	bed, w := newBed(t, dir), &forms{}
	bed.SetOverride(w)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "c2")
	e.until(t, lds, "l")
	plain := e.have[cds]["c1"]
	w.put(bed, "c1", "dark")
	e.next(t)
	expect(t, "dark", e.have[cds]["c1"], plain+" as dark")
	e.quiet(t)
	// The xds-server and the disk have the original version.
	bed.file(t, "a.clusters.cache", plain)
	bed.is(t, "a", "is fine", func(s xdsproxy.State) bool { return s.Connected && s.Refused == "" })
	s.set(t, cluster("c1", 2))
	e.next(t)
	changed := e.have[cds]["c1"]
	if changed == plain+" as dark" || changed[len(changed)-len(" as dark"):] != " as dark" {
		t.Errorf("a change of what is dark gives %q", changed)
	}
	bed.file(t, "a.clusters.cache", changed[:len(changed)-len(" as dark")])
	bed.stop()
	s.grpc.Stop()

	// The next agent, without an xds-server, has no form: Envoy gets the usual one.
	bed = newBed(t, dir)
	bed.SetOverride(&forms{})
	bed.Keep(xdsproxy.Upstream{Name: "a"})
	bed.follow(t, "a", s, nil)
	e = bed.envoy(t, e.have)
	e.subscribe(t, cds, lds)
	e.next(t)
	for e.have[cds]["c1"] == changed {
		e.next(t)
	}
	expect(t, "bright again", e.have[cds]["c1"]+" as dark", changed)
}
