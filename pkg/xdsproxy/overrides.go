package xdsproxy

import (
	"strings"

	"google.golang.org/protobuf/types/known/anypb"
)

// formSeparator separates the forms of Overrides.
const formSeparator = "+"

// Overrides applies several overrides in order. It implements Override: its form consists of theirs, which must not
// contain a plus sign.
type Overrides []Override

// Form implements Override.
func (o Overrides) Form(name string) string {
	forms := make([]string, len(o))
	for i, each := range o {
		forms[i] = each.Form(name)
	}
	if joined := strings.Join(forms, formSeparator); strings.Trim(joined, formSeparator) != "" {
		return joined
	}
	return ""
}

// Apply implements Override.
func (o Overrides) Apply(name, form string, resource *anypb.Any) *anypb.Any {
	for _, each := range o {
		var own string
		own, form, _ = strings.Cut(form, formSeparator)
		resource = each.Apply(name, own, resource)
	}
	return resource
}
