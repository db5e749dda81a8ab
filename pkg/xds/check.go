package xds

import (
	"fmt"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/envoy/references"
)

// named is a listener or an Envoy cluster.
type named interface {
	proto.Message
	GetName() string
}

// check returns the resources that may be published, by name, and an error for each other resource: its name is
// empty, taken or a duplicate, or it refers to an unknown Envoy cluster. Envoy accepts unknown references, and then
// closes every connection that uses them. Of two resources with one name it uses one.
func check[R named](resources []R, taken, known map[string]bool) (good map[string]types.Resource, errs []error) {
	good = make(map[string]types.Resource, len(resources))
	for _, r := range resources {
		name := r.GetName()
		if _, twice := good[name]; twice || taken[name] || name == "" {
			errs = append(errs, fmt.Errorf("checking resource %q: its name is empty, reserved or duplicate", name))
			continue
		}
		if err := checkReferences(r, known); err != nil {
			errs = append(errs, fmt.Errorf("checking resource %q: %w", name, err))
			continue
		}
		good[name] = r
	}
	return good, errs
}

func checkReferences(r proto.Message, known map[string]bool) error {
	names, err := references.Of(r)
	if err != nil {
		return err
	}
	var dangling []string
	for _, name := range names {
		if !known[name] {
			dangling = append(dangling, name)
		}
	}
	if len(dangling) > 0 {
		return fmt.Errorf("it refers to Envoy clusters that do not exist: %s", strings.Join(dangling, ", "))
	}
	return nil
}

// set returns a set of names.
func set(names []string) map[string]bool {
	s := make(map[string]bool, len(names))
	for _, name := range names {
		s[name] = true
	}
	return s
}

// namesOf returns a copy of a set with the names of resources added.
func namesOf[R any](resources map[string]R, more map[string]bool) map[string]bool {
	s := make(map[string]bool, len(resources)+len(more))
	for name := range more {
		s[name] = true
	}
	for name := range resources {
		s[name] = true
	}
	return s
}
