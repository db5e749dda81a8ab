package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// fieldsOf returns the fields of an Envoy cluster that have a value of the model.
func fieldsOf(r collect.Resource, of []origin) ([]origin, error) {
	text, err := asJSON(r.Config)
	if err != nil {
		return nil, err
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return nil, fmt.Errorf("reading JSON: %w", err)
	}
	var all []origin
	flatten("", value, func(path, value string) {
		all = append(all, origin{path, value, originOf(path, value, of)})
	})
	return all, nil
}

// limitFields are the fields of Envoy that hold the limits of a Tunnel.
var limitFields = map[string]string{"max_requests": "connections", "max_pending_requests": "pending connections"}

func originOf(path, value string, of []origin) string {
	for _, o := range of {
		if limit := limitFields[path[strings.LastIndex(path, ".")+1:]]; limit != "" && limit == o.Field && value == o.Value {
			return o.From
		}
		switch o.Field {
		case "hostname", "extra name":
			if value == o.Value {
				return o.From
			}
		case "id":
			if strings.HasPrefix(value, o.Value+".id.") {
				return o.From
			}
		}
	}
	return ""
}

// flatten passes the leaves of JSON to take, in order.
func flatten(path string, value any, take func(path, value string)) {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range sortedKeys(value) {
			flatten(strings.TrimPrefix(path+"."+key, "."), value[key], take)
		}
	case []any:
		for i, element := range value {
			flatten(fmt.Sprintf("%s[%d]", path, i), element, take)
		}
	default:
		take(path, fmt.Sprint(value))
	}
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(-cmp.Compare(btoi(a == "name"), btoi(b == "name")), strings.Compare(a, b))
	})
	return keys
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
