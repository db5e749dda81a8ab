package csds

import (
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxPattern bounds a regular expression, which RE2 matches in linear time.
const maxPattern = 1 << 10

var (
	errMatcher = status.Error(codes.InvalidArgument,
		"node_matchers support node_id, and node_metadatas with a path of keys and a string_match or present_match")
	errPattern = status.Error(
		codes.InvalidArgument, "node_matchers: a safe_regex is not an RE2 expression, or is too long",
	)
)

// nodeMatcher returns a function that accepts the nodes that any of the matchers matches; all nodes if there is none.
func nodeMatcher(matchers []*matcherv3.NodeMatcher) (func(*corev3.Node) bool, error) {
	var all []func(*corev3.Node) bool
	for _, m := range matchers {
		one, err := oneMatcher(m)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return func(n *corev3.Node) bool {
		for _, matches := range all {
			if matches(n) {
				return true
			}
		}
		return len(all) == 0
	}, nil
}

func oneMatcher(m *matcherv3.NodeMatcher) (func(*corev3.Node) bool, error) {
	var all []func(*corev3.Node) bool
	if id := m.GetNodeId(); id != nil {
		matches, err := stringMatcher(id)
		if err != nil {
			return nil, err
		}
		all = append(all, func(n *corev3.Node) bool { return matches(n.GetId()) })
	}
	for _, metadata := range m.GetNodeMetadatas() {
		matches, err := metadataMatcher(metadata)
		if err != nil {
			return nil, err
		}
		all = append(all, matches)
	}
	return func(n *corev3.Node) bool {
		for _, matches := range all {
			if !matches(n) {
				return false
			}
		}
		return true
	}, nil
}

// metadataMatcher matches one string of the metadata, which has no nested fields.
func metadataMatcher(m *matcherv3.StructMatcher) (func(*corev3.Node) bool, error) {
	if len(m.GetPath()) != 1 {
		return nil, errMatcher
	}
	key := m.GetPath()[0].GetKey()
	switch value := m.GetValue().GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_PresentMatch:
		return func(n *corev3.Node) bool { return (n.GetMetadata().GetFields()[key] != nil) == value.PresentMatch }, nil
	case *matcherv3.ValueMatcher_StringMatch:
		matches, err := stringMatcher(value.StringMatch)
		if err != nil {
			return nil, err
		}
		return func(n *corev3.Node) bool {
			field := n.GetMetadata().GetFields()[key]
			return field != nil && matches(field.GetStringValue())
		}, nil
	default:
		return nil, errMatcher
	}
}

func stringMatcher(m *matcherv3.StringMatcher) (func(string) bool, error) {
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = strings.ToLower
	}
	with := func(compare func(s, pattern string) bool, pattern string) (func(string) bool, error) {
		pattern = fold(pattern)
		return func(s string) bool { return compare(fold(s), pattern) }, nil
	}
	switch pattern := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return with(func(s, p string) bool { return s == p }, pattern.Exact)
	case *matcherv3.StringMatcher_Prefix:
		return with(strings.HasPrefix, pattern.Prefix)
	case *matcherv3.StringMatcher_Suffix:
		return with(strings.HasSuffix, pattern.Suffix)
	case *matcherv3.StringMatcher_Contains:
		return with(strings.Contains, pattern.Contains)
	case *matcherv3.StringMatcher_SafeRegex:
		text := pattern.SafeRegex.GetRegex()
		if len(text) > maxPattern { // checked first, because compiling costs more than matching
			return nil, errPattern
		}
		expression, err := regexp.Compile("^(?:" + text + ")$") // Envoy matches whole strings
		if err != nil {
			return nil, errPattern
		}
		return expression.MatchString, nil
	default:
		return nil, errMatcher
	}
}
