package csds

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// marshal returns a seed.
func marshal(f *testing.F, m proto.Message) []byte {
	f.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// FuzzMatchers applies any matchers to any node. An accepted matcher is bounded, and an empty list of matchers accepts
// every node.
func FuzzMatchers(f *testing.F) {
	metadata := &structpb.Struct{Fields: map[string]*structpb.Value{"role": structpb.NewStringValue("edge")}}
	node := &corev3.Node{Id: "CN=edge-1", Metadata: metadata}
	id := func(m *matcherv3.StringMatcher) *matcherv3.NodeMatcher { return &matcherv3.NodeMatcher{NodeId: m} }
	regex := func(text string) *matcherv3.NodeMatcher {
		pattern := &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: text}}
		return id(&matcherv3.StringMatcher{MatchPattern: pattern})
	}
	role := &matcherv3.StructMatcher{
		Path:  []*matcherv3.StructMatcher_PathSegment{{Segment: &matcherv3.StructMatcher_PathSegment_Key{Key: "role"}}},
		Value: &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}},
	}
	for _, all := range [][]*matcherv3.NodeMatcher{
		nil,
		{id(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "CN=EDGE-1"}, IgnoreCase: true})},
		{regex("CN=.*"), regex("((a{100}){100}){100}"), regex("(")},
		{{NodeMetadatas: []*matcherv3.StructMatcher{role, {}}}},
		{{}},
	} {
		f.Add(marshal(f, &statusv3.ClientStatusRequest{NodeMatchers: all}), marshal(f, node))
	}
	f.Fuzz(func(t *testing.T, request, named []byte) {
		r, n := &statusv3.ClientStatusRequest{}, &corev3.Node{}
		if proto.Unmarshal(request, r) != nil || proto.Unmarshal(named, n) != nil {
			return
		}
		matches, err := nodeMatcher(r.GetNodeMatchers())
		if err != nil {
			return
		}
		for _, m := range r.GetNodeMatchers() {
			if len(m.GetNodeId().GetSafeRegex().GetRegex()) > maxPattern {
				t.Error("a long expression was taken")
			}
		}
		if first := matches(n); first != matches(n) || !first && len(r.GetNodeMatchers()) == 0 {
			t.Errorf("it matches %v, and then %v", first, !first)
		}
	})
}
