// Package denylist renders the filter by which a gateway closes connections of revoked edges and ended tunnels. Its
// input is what is denied, its output a filter of Envoy. It does not know why something is denied.
package denylist

import (
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	rbacfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/fairlead/fairlead/pkg/model"
)

// deniedPolicy is the name of the only policy of the deny filter.
const deniedPolicy = "denied"

// Filter closes a connection before its handshake is read if the leaf has both names of a revoked edge, or the id of an
// ended tunnel. It also exists while nothing is denied, so that the first denial changes no more than any other. In a
// filter chain with open streams each denial would end all of them: there the agent denies (AddAdmission of package
// envoy).
func Filter(d model.TunnelDomain, denied model.Denied) *rbacfilterv3.RBAC {
	rules := &rbacv3.RBAC{Action: rbacv3.RBAC_DENY}
	var names []*rbacv3.Principal
	for _, edge := range sorted(denied.Edges, model.EdgeRef.Compare) {
		names = append(names, &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{
			Ids: []*rbacv3.Principal{named(d.TunnelID(edge.ID)), named(model.NodeID(edge.Node))},
		}}})
	}
	for _, id := range sorted(denied.IDs, strings.Compare) {
		names = append(names, named(d.TunnelID(id)))
	}
	if len(names) > 0 {
		rules.Policies = map[string]*rbacv3.Policy{deniedPolicy: {
			Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}},
			Principals:  names,
		}}
	}
	return &rbacfilterv3.RBAC{StatPrefix: "tunnels_", Rules: rules}
}

// named matches a leaf with this DNS name or this whole subject.
func named(name string) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{
		PrincipalName: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}},
	}}}
}

// sorted returns a sorted copy without duplicates: equal sets give equal bytes.
func sorted[T comparable](all []T, compare func(a, b T) int) []T {
	return slices.Compact(slices.SortedFunc(slices.Values(all), compare))
}
