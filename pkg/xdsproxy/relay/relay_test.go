package relay

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

// exchange is an event and its effects, as short texts. Lines of the log and notifications are left out.
type exchange struct {
	event Event
	want  []string
}

// later is an event after a pause.
type later struct {
	Event
	pause time.Duration
}

func short(effect Effect) string {
	switch e := effect.(type) {
	case Subscribe:
		return fmt.Sprint(e.Upstream, ": subscribe ", e.Kind, " with ", e.Versions)
	case Answer:
		text := fmt.Sprint(e.Upstream, ": ", e.Kind, " ", e.Nonce)
		for _, why := range e.Rejections {
			text += " NACK " + why.Message
		}
		return text
	case CloseStream:
		return fmt.Sprint(e.Upstream, ": close: ", e.Err)
	case Respond:
		text := fmt.Sprint("envoy: ", e.Kind, " ", e.Nonce)
		for _, res := range e.Resources {
			text += " +" + res.Name + "=" + res.Version
		}
		for _, name := range e.Removed {
			text += " -" + name
		}
		return text
	case CloseSession:
		return fmt.Sprint("envoy: close: ", e.Err)
	case Write:
		text := fmt.Sprint("write ", e.Upstream)
		for _, f := range e.Files {
			text += fmt.Sprintf(" %s%s %v", f.Kind, []string{"", " good"}[f.Generation], f.Set.versions())
			if !f.Whole {
				text += "+"
			}
		}
		return text
	case Log, Notify:
		return ""
	}
	return fmt.Sprintf("%T%v", effect, effect)
}

func set(resources ...string) Set {
	all := Set{}
	for _, text := range resources {
		name, version, _ := strings.Cut(text, "=")
		all[name] = nil
		if version != "" {
			all[name] = &Resource{Name: name, Version: version, Address: map[bool]string{true: "here"}[name[0] == 'l']}
		}
	}
	return all
}

func from(upstream string, k Kind, nonce string, changes ...string) Received {
	return Received{Upstream: upstream, Stream: uint64(upstream[0]), Kind: k, Nonce: nonce, Changes: set(changes...)}
}

func opened(upstream string) Opened { return Opened{upstream, uint64(upstream[0])} }

func subscription(k Kind, have map[string]string) Requested {
	return Requested{Session: 1, Kind: k, Have: have}
}

func ack(k Kind, nonce string) Requested { return Requested{Session: 1, Kind: k, Nonce: nonce} }

func nack(k Kind, nonce string) Requested {
	return Requested{Session: 1, Kind: k, Nonce: nonce, Nack: &Rejection{Code: codes.Internal, Message: "no"}}
}

// known is a disk with one Envoy cluster and no listeners that Envoy has run with.
func known(trials int) Restored {
	stored := func(k Kind, g Generation, set Set) Stored {
		return Stored{Upstream: "a", Kind: k, Generation: g, Set: set}
	}
	return Restored{Trials: trials, Files: []Stored{
		stored(Clusters, Accepted, set("c=1")), stored(Clusters, Good, set("c=1")),
		stored(Listeners, Accepted, Set{}), stored(Listeners, Good, Set{}),
	}}
}

func TestEvents(t *testing.T) {
	begin := []exchange{
		{opened("a"), []string{"a: subscribe clusters with map[]", "a: subscribe listeners with map[]"}},
		{from("a", Clusters, "n1", "c=1", "d=1"), nil},
		{Attached{1}, nil},
		{subscription(Clusters, nil), []string{"envoy: clusters 1 +c=1 +d=1"}},
	}
	restored := func() []exchange {
		return []exchange{
			{known(0), nil},
			{opened("a"), []string{"a: subscribe clusters with map[c:1]", "a: subscribe listeners with map[]"}},
			{Attached{1}, nil},
			{subscription(Clusters, nil), []string{"envoy: clusters 1 +c=1"}},
			{ack(Clusters, "1"), nil},
			{subscription(Listeners, nil), []string{"envoy: listeners 2"}},
			{ack(Listeners, "2"), nil},
		}
	}
	rolledBack := []exchange{ // the third crash restores what was good
		{known(2), nil},
		{opened("a"), []string{"a: subscribe clusters with map[c:1]", "a: subscribe listeners with map[]"}},
		{from("a", Clusters, "n1", "c=2"), nil},
		{Attached{1}, nil},
		{subscription(Clusters, nil), []string{"Record{3}"}},
		{Recorded{Count: 3}, []string{"envoy: clusters 1 +c=2"}},
		{Crashed{}, []string{
			"envoy: close: the stream of Envoy has ended",
			"a: clusters n1 NACK Envoy ended 3 times in a row with the newest clusters; its previous ones are restored " +
				"(rolled back: 1, such as c)",
			"RolledBack{}",
			"write a clusters map[c:1]", "Record{0}",
		}},
		{Recorded{Count: 0}, nil},
		{Attached{1}, nil},
		{subscription(Clusters, nil), []string{"envoy: clusters 1 +c=1"}},
	}
	tests := map[string][][]exchange{
		"an ACK of Envoy is passed on, and what it accepted is written": {begin, {
			{ack(Clusters, "1"), []string{"a: clusters n1", "write a clusters map[c:1 d:1]"}},
			{from("a", Clusters, "n2", "c"), []string{"envoy: clusters 2 -c"}},
			{ack(Clusters, "2"), []string{"a: clusters n2"}},
		}},
		"of a response that Envoy rejects, the valid resources are sent again": {begin, {
			{nack(Clusters, "1"), []string{"envoy: clusters 2 +c=1"}},
			{ack(Clusters, "2"), []string{"envoy: clusters 3 +d=1"}},
			{nack(Clusters, "3"), []string{"a: clusters n1 NACK no", "write a clusters map[c:1]"}},
			{from("a", Clusters, "n2", "e=1"), []string{"envoy: clusters 4 +e=1"}},
		}},
		"an answer with an old nonce is ignored": {begin, {{ack(Clusters, "0"), nil}, {ack(Listeners, "1"), []string{}}}},
		"events of streams that have ended are ignored": {begin, {
			{Closed{"a", 'a', codes.Unavailable}, nil},
			{from("a", Clusters, "n2", "x=1"), nil},
			{Attached{2}, []string{"envoy: close: another Envoy has connected"}},
			{ack(Clusters, "1"), nil},
		}},
		"an xds-server that does not wait is disconnected": {begin, func() (many []exchange) {
			for i := range maxPending - 1 {
				many = append(many, exchange{from("a", Clusters, fmt.Sprint("x", i), "c=2"), nil})
			}
			return append(many, exchange{
				from("a", Clusters, "last", "c=3"), []string{"a: close: the xds-server does not wait for answers"},
			})
		}()},
		"a trial is on disk before Envoy gets what may be at fault": {restored(), {
			{from("a", Clusters, "n1", "c=2"), []string{"Record{1}"}},
			{Recorded{Count: 1}, []string{"envoy: clusters 3 +c=2"}},
		}},
		"a disk that fails delays nothing": {restored(), {
			{from("a", Clusters, "n1", "c=2"), []string{"Record{1}"}},
			{Recorded{Count: 1, Err: "full"}, []string{"envoy: clusters 3 +c=2"}},
			{later{Ticked{}, time.Minute}, []string{"Record{1}"}},
		}},
		"the third crash restores what was good": {rolledBack, {
			{ack(Clusters, "1"), nil},
			{from("a", Clusters, "n2", "d=1"), []string{
				"Record{1}",
			}},
			{Recorded{Count: 1}, []string{"envoy: clusters 2 +d=1"}},
			{ack(Clusters, "2"), []string{"a: clusters n2"}},
			{from("a", Clusters, "n3", "c=3"), []string{"envoy: clusters 3 +c=3"}},
		}},
		"after three ends that took the agent along, the next one restores what was good": {{
			{known(3), nil},
			{opened("a"), []string{"a: subscribe clusters with map[c:1]", "a: subscribe listeners with map[]"}},
			{from("a", Clusters, "n1", "c=2"), nil},
			{Attached{1}, nil},
			{subscription(Clusters, nil), []string{
				"a: clusters n1 NACK Envoy ended 3 times in a row with the newest clusters; its previous ones are restored " +
					"(rolled back: 1, such as c)",
				"envoy: clusters 1 +c=1", "write a clusters map[c:1]", "Record{2}",
			}},
		}},
		"an Envoy that outlived its agent keeps what it has until the xds-server answers": {{
			{known(0), nil},
			{opened("a"), []string{"a: subscribe clusters with map[c:1]", "a: subscribe listeners with map[]"}},
			{Attached{1}, nil},
			{subscription(Clusters, map[string]string{"c": "newer", "d": "newer"}), []string{"envoy: clusters 1"}},
			{ack(Clusters, "1"), nil},
			{subscription(Listeners, nil), []string{"envoy: listeners 2"}},
			{ack(Listeners, "2"), nil},
			{from("a", Clusters, "n1", "c=3"), []string{"Record{1}"}},
			{Recorded{Count: 1}, []string{"envoy: clusters 3 +c=3"}},
			{ack(Clusters, "3"), []string{"a: clusters n1", "envoy: clusters 4 -d", "write a clusters map[c:3]"}},
		}},
		"a resource in another form is sent again": {restored(), {
			{Reformed{Clusters, []string{"c", "unknown"}}, []string{"envoy: clusters 3 +c=1"}},
			{Reformed{Clusters, []string{"c"}}, nil},
			{ack(Clusters, "3"), []string{"envoy: clusters 4 +c=1"}},
			{ack(Clusters, "4"), nil},
		}},
		"scopes are requested when Envoy has a listener with scopes": {begin, {
			{subscription(Scopes, nil), []string{"a: subscribe scopes with map[]"}},
		}},
		"a resource of another membership is rejected, and cannot be removed": {begin, {
			{ack(Clusters, "1"), []string{"a: clusters n1", "write a clusters map[c:1 d:1]"}},
			{opened("b"), []string{"b: subscribe clusters with map[]", "b: subscribe listeners with map[]"}},
			{from("b", Clusters, "m1", "c=9"), []string{
				`b: clusters m1 NACK resource "c" belongs to another xds-server of this Envoy`, "write b clusters map[]",
			}},
			{from("b", Clusters, "m2", "c"), []string{"b: clusters m2"}},
		}},
		"resources of a removed membership are removed from Envoy and the disk": {restored(), {
			{Removed{"a"}, []string{
				"Erase{a}", "a: close: the resources of the upstream were removed", "envoy: clusters 3 -c",
			}},
		}},
		"and so they are while another membership has never been answered": {restored(), {
			{Vetted{Upstream: "b"}, nil},
			{Removed{"a"}, []string{
				"Erase{a}", "a: close: the resources of the upstream were removed", "envoy: clusters 3 -c",
			}},
		}},
		"and so is one that was on its way to Envoy": {restored(), {
			{Vetted{Upstream: "b"}, nil},
			{from("a", Clusters, "n1", "d=1"), []string{"Record{1}"}},
			{Recorded{Count: 1}, []string{"envoy: clusters 3 +d=1"}},
			{Removed{"a"}, []string{"Erase{a}", "a: close: the resources of the upstream were removed"}},
			{ack(Clusters, "3"), []string{"envoy: clusters 4 -c -d"}},
		}},
		"a listener gets the address of another one after that is gone, and gives it back": {restored(), {
			{from("a", Clusters, "n1"), []string{"a: clusters n1"}},
			{from("a", Listeners, "n2", "la=1"), []string{"Record{1}"}},
			{Recorded{Count: 1}, []string{"envoy: listeners 3 +la=1"}},
			{ack(Listeners, "3"), []string{"a: listeners n2", "write a listeners map[la:1]"}},
			{opened("b"), []string{"b: subscribe clusters with map[]", "b: subscribe listeners with map[]"}},
			{from("b", Clusters, "m1"), []string{"b: clusters m1", "write b clusters map[]"}},
			{from("b", Listeners, "m2", "lb=1"), []string{"envoy: listeners 4 -la"}},
			{ack(Listeners, "4"), []string{"envoy: listeners 5 +lb=1"}},
			{ack(Listeners, "5"), []string{"b: listeners m2"}},
			{from("b", Listeners, "m3", "lb"), []string{"envoy: listeners 6 -lb"}},
			{ack(Listeners, "6"), []string{"b: listeners m3", "envoy: listeners 7 +la=1"}},
		}},
		"a removal is answered when another membership takes the name": {{
			{opened("a"), []string{"a: subscribe clusters with map[]", "a: subscribe listeners with map[]"}},
			{opened("b"), []string{"b: subscribe clusters with map[]", "b: subscribe listeners with map[]"}},
			{from("a", Clusters, "n1", "c=1"), nil},
			{from("a", Clusters, "n2", "c"), nil},
			{from("b", Clusters, "m1", "c=2"), []string{"a: clusters n1", "a: clusters n2", "write a clusters map[]"}},
			{Attached{1}, nil},
			{subscription(Clusters, nil), []string{"envoy: clusters 1 +c=2"}},
			{ack(Clusters, "1"), []string{"b: clusters m1", "write b clusters map[c:2]"}},
		}},
		"a removal is answered when the name belongs to no membership": {{
			{known(0), nil},
			{Vetted{Upstream: "b"}, nil},
			{Vetted{Upstream: "a", Faults: []Fault{{Clusters, "c", "1", "no"}}}, []string{
				"write a clusters map[] clusters good map[]",
			}},
			{opened("a"), []string{"a: subscribe clusters with map[]", "a: subscribe listeners with map[]"}},
			{Attached{1}, nil},
			{subscription(Clusters, map[string]string{"c": "1"}), nil}, // it waits for b
			{from("a", Clusters, "n1"), nil},
			{opened("b"), []string{"b: subscribe clusters with map[]", "b: subscribe listeners with map[]"}},
			{from("b", Clusters, "m1"), []string{"b: clusters m1", "envoy: clusters 1", "write b clusters map[]"}},
			{ack(Clusters, "1"), []string{"envoy: clusters 2 -c"}},
			{ack(Clusters, "2"), []string{"a: clusters n1"}},
		}},
		"a listener on its way to Envoy has its address, whatever another membership says about its name": {restored(), {
			{from("a", Clusters, "n1"), []string{"a: clusters n1"}},
			{from("a", Listeners, "n2", "la=1"), []string{"Record{1}"}},
			{Recorded{Count: 1}, []string{"envoy: listeners 3 +la=1"}},
			{opened("b"), []string{"b: subscribe clusters with map[]", "b: subscribe listeners with map[]"}},
			{from("b", Clusters, "m1"), []string{"b: clusters m1", "write b clusters map[]"}},
			{from("b", Listeners, "m2", "la=2"), []string{
				`b: listeners m2 NACK resource "la" belongs to another xds-server of this Envoy`,
			}},
			{from("b", Listeners, "m3", "la", "lb=1"), []string{"a: listeners n2"}},
			{ack(Listeners, "3"), []string{"envoy: listeners 4 -la", "write a listeners map[la:1]"}},
			{ack(Listeners, "4"), []string{"envoy: listeners 5 +lb=1"}},
		}},
		"a listener that returns before Envoy has lost it is accepted": {restored(), {
			{from("a", Clusters, "n1"), []string{"a: clusters n1"}},
			{from("a", Listeners, "n2", "la=1"), []string{"Record{1}"}},
			{Recorded{Count: 1}, []string{"envoy: listeners 3 +la=1"}},
			{ack(Listeners, "3"), []string{"a: listeners n2", "write a listeners map[la:1]"}},
			{Reformed{Clusters, []string{"c"}}, []string{"envoy: clusters 4 +c=1"}}, // Envoy is busy
			{opened("b"), []string{"b: subscribe clusters with map[]", "b: subscribe listeners with map[]"}},
			{from("b", Clusters, "m1"), []string{"b: clusters m1", "write b clusters map[]"}},
			{from("b", Listeners, "m2", "lb=1"), nil},
			{Closed{"b", 'b', codes.Unavailable}, nil},
			{ack(Clusters, "4"), nil},
			{from("a", Listeners, "n3"), []string{"a: listeners n3"}},
		}},
		"what crashed Envoy stays rejected when Envoy rejects its replacement too": {rolledBack, {
			{nack(Clusters, "1"), nil},
			{from("a", Clusters, "n2", "d=1"), []string{"Record{1}"}},
			{Recorded{Count: 1}, []string{"envoy: clusters 2 +d=1"}},
		}},
		"a write that failed is tried again, and covers what has changed since": {begin, {
			{ack(Clusters, "1"), []string{"a: clusters n1", "write a clusters map[c:1 d:1]"}},
			{from("a", Clusters, "n2", "c=2"), []string{"envoy: clusters 2 +c=2"}},
			{ack(Clusters, "2"), []string{"a: clusters n2"}},
			{Written{Write: Write{Upstream: "a", ID: 1, Files: []File{{}}}, Sizes: []int64{-1}, Err: "full"}, nil},
			{later{Ticked{}, time.Second}, nil},
			{later{Ticked{}, time.Minute}, []string{"write a clusters map[c:2 d:1]"}},
		}},
		"a large file is extended by what has changed, also during the write": {begin, {
			{ack(Clusters, "1"), []string{"a: clusters n1", "write a clusters map[c:1 d:1]"}},
			{from("a", Clusters, "n2", "c=2"), []string{"envoy: clusters 2 +c=2"}},
			{ack(Clusters, "2"), []string{"a: clusters n2"}},
			{Written{Write: Write{Upstream: "a", ID: 1, Files: []File{{Whole: true}}}, Sizes: []int64{1 << 20}}, nil},
			{later{Ticked{}, time.Second}, []string{"write a clusters map[c:2]+"}},
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, now := New(quick), time.Unix(1000, 0)
			for i, x := range slices.Concat(test...) {
				event := x.event
				if l, ok := event.(later); ok {
					event, now = l.Event, now.Add(l.pause)
				}
				got := []string{}
				for _, effect := range r.Apply(now, event) {
					if text := short(effect); text != "" {
						got = append(got, strings.TrimPrefix(text, "relay."))
					}
				}
				if diff := cmp.Diff(append([]string{}, x.want...), got); diff != "" {
					t.Fatalf("the effects of event %d, %T%+v:\n%s%s", i, event, event, diff, r)
				}
			}
		})
	}
}

// TestWhenAFileIsWrittenAsAWhole has files with 100 resources.
func TestWhenAFileIsWrittenAsAWhole(t *testing.T) {
	names := func(n int) map[string]bool {
		all := map[string]bool{}
		for i := range n {
			all[fmt.Sprint(i)] = true
		}
		return all
	}
	for what, tc := range map[string]struct {
		file file
		want bool
	}{
		"its size is not known":        {file{first: 200 << 20}, true},
		"it is small":                  {file{known: true, first: smallFile, names: names(1)}, true},
		"little has changed":           {file{known: true, first: 200 << 20, changes: 30 << 20, names: names(1)}, false},
		"much has changed":             {file{known: true, first: 200 << 20, changes: 40 << 20}, true},
		"less than its first section":  {file{known: true, first: 1 << 20, changes: 1<<20 - 1}, false},
		"as much as its first section": {file{known: true, first: 1 << 20, changes: 1 << 20}, true},
		"half of its resources change": {file{known: true, first: 200 << 20, names: names(50)}, false},
		"most of its resources change": {file{known: true, first: 200 << 20, names: names(51)}, true},
	} {
		if got := tc.file.whole(100); got != tc.want {
			t.Errorf("%s: it is written as a whole: %t, want %t", what, got, tc.want)
		}
	}
}

// TestTheRelayIsPure checks what its doc comment promises, in its own source.
func TestTheRelayIsPure(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, entry.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			for _, impure := range []string{"context", "io", "net", "os", "rand", "runtime", "sync", "unsafe", "proto"} {
				if path := strings.Trim(i.Path.Value, `"`); slices.Contains(strings.Split(path, "/"), impure) {
					t.Errorf("%s imports %s", entry.Name(), path)
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt, *ast.ChanType:
				t.Errorf("%s: it has goroutines or channels", set.Position(n.Pos()))
			case *ast.SelectorExpr:
				of, ok := n.X.(*ast.Ident)
				clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Sleep", "Tick"}
				if ok && of.Name == "time" && slices.Contains(clock, n.Sel.Name) {
					t.Errorf("%s: it reads the clock", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// A state is text for people. That of one upstream has nothing of others, which may belong to another installation.
func TestAStateShowsWhatDiffers(t *testing.T) {
	r := New(quick)
	for _, event := range []Event{
		opened("a"), from("a", Clusters, "n1", "mine=1"), opened("b"), from("b", Clusters, "m1", "yours=1"),
		Attached{1},
		subscription(Clusters, nil), // Envoy gets what belongs to one upstream first
	} {
		r.Apply(time.Unix(1000, 0), event)
	}
	flight, todo := `flight=1 of=1:["mine"]`, `todo=1:["yours"]`
	for name, c := range map[string]struct {
		text     string
		in, less []string
	}{
		"all of them":    {r.String(), []string{"upstream a ", "upstream b ", flight, todo}, nil},
		"one":            {r.Describe("a"), []string{"upstream a ", flight}, []string{"upstream b", "yours"}},
		"the other one":  {r.Describe("b"), []string{"upstream b ", todo}, []string{"upstream a", "mine", "flight"}},
		"an unknown one": {r.Describe("c"), []string{"envoy clusters have=0 "}, []string{"upstream", "mine", "yours"}},
	} {
		for _, want := range c.in {
			if !strings.Contains(c.text, want) {
				t.Errorf("%s: %q is not in\n%s", name, want, c.text)
			}
		}
		for _, not := range c.less {
			if strings.Contains(c.text, not) {
				t.Errorf("%s: %q is in\n%s", name, not, c.text)
			}
		}
	}
}

// TestAStateHasNothingOfAnUpstreamThatWasRemoved: while Envoy is told to remove its resources, they belong to none.
func TestAStateHasNothingOfAnUpstreamThatWasRemoved(t *testing.T) {
	r := New(quick)
	for _, event := range []Event{
		opened("a"), from("a", Clusters, "n1", "mine=1"),
		Attached{1},
		subscription(Clusters, nil), ack(Clusters, "1"),
		Removed{"a"},
	} {
		r.Apply(time.Unix(1000, 0), event)
	}
	if text := r.String(); !strings.Contains(text, `of=1:["mine"]`) {
		t.Errorf("nothing is being removed in\n%s", text)
	}
	if text := r.Describe("b"); strings.Contains(text, "mine") {
		t.Errorf("the resource is in\n%s", text)
	}
}

// TestThePresentVersionComesLast: a check also learns from what it gets, such as the address of the apiserver.
func TestThePresentVersionComesLast(t *testing.T) {
	r := &Relay{upstreams: map[string]*upstream{}}
	c := newUpstream(r, "a")
	r.upstreams["a"] = c
	c.shares[Clusters].good = Set{"api": {Name: "api", Version: "1"}, "old": {Name: "old", Version: "1"}}
	c.shares[Clusters].offered = Set{"api": {Name: "api", Version: "2"}}
	all := r.Present("a")[Clusters]
	if len(all) != 3 || all[2].Name != "api" || all[2].Version != "2" {
		t.Errorf("got %+v, want version 2 of api last", all)
	}
}
