package xdsproxy

import (
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
)

// marking is an override that appends its form to the type URL of a resource.
type marking string

// Form implements Override.
func (m marking) Form(name string) string {
	if name == "usual" {
		return ""
	}
	return string(m)
}

// Apply implements Override.
func (m marking) Apply(_, form string, resource *anypb.Any) *anypb.Any {
	if form == "" {
		return resource
	}
	return &anypb.Any{TypeUrl: resource.GetTypeUrl() + " " + form}
}

// TestOverridesApplyInOrder: each has its own part of the form, and nothing is applied in the usual form.
func TestOverridesApplyInOrder(t *testing.T) {
	for form, tc := range map[string]struct {
		of   Overrides
		name string
		want string
	}{
		"":        {Overrides{marking("first"), marking("second")}, "usual", "is"},
		"only":    {Overrides{marking("only")}, "x", "is only"},
		"a+b":     {Overrides{marking("a"), marking("b")}, "x", "is a b"},
		"+b":      {Overrides{marking(""), marking("b")}, "x", "is b"},
		"a++last": {Overrides{marking("a"), marking(""), marking("last")}, "x", "is a last"},
	} {
		if got := tc.of.Form(tc.name); got != form {
			t.Errorf("the form is %q, want %q", got, form)
		}
		if got := tc.of.Apply(tc.name, form, &anypb.Any{TypeUrl: "is"}).GetTypeUrl(); got != tc.want {
			t.Errorf("%q becomes %q, want %q", form, got, tc.want)
		}
	}
	// an Envoy that an earlier agent has started may show fewer
	fewer := (Overrides{marking("a"), marking("b")}).Apply("x", "a", &anypb.Any{TypeUrl: "is"})
	if got := fewer.GetTypeUrl(); got != "is a" {
		t.Errorf("a form with one part becomes %q", got)
	}
}
