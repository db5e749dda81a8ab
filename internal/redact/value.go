package redact

import (
	"regexp"
	"strings"
)

// secretKey matches the names of fields whose texts are secret. publicKey matches exceptions: fields that only name
// something or are public.
var (
	secretKey = regexp.MustCompile(`(?i)` + named + `|sha256|^kubeconfig$|passwd`)
	publicKey = regexp.MustCompile(`(?i)(?:name|ref|secret|namespace|issuer|version|path|kind|reason|type)$`)
)

// publicAnnotation matches annotations whose values are kept, except values that have the form of a secret. All other
// values are removed, because users and their tools may store anything there.
var publicAnnotation = regexp.MustCompile(
	`^(?:[a-z0-9.-]*fairlead\.dev|(?:[a-z0-9-]+\.)*cluster\.x-k8s\.io|` +
		`deployment\.kubernetes\.io|controller-gen\.kubebuilder\.io)/`,
)

// Value returns a copy of decoded JSON or YAML (maps with string keys, lists, strings, numbers) without secrets. It
// removes values of fields with secret names, all data of Secrets, values of environment and template variables,
// unknown annotations, and managed fields. It passes every other string through Text. It does not change its argument.
func Value(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return object(v)
	case []any:
		return list(v)
	case string:
		return Text(v)
	}
	return v
}

// secretFlag matches a flag whose value is the next list item.
var secretFlag = regexp.MustCompile(`(?i)^--?[a-z0-9-]*` + named + `[a-z0-9-]*$`)

func list(all []any) []any {
	out := make([]any, len(all))
	hide := false
	for i := range all {
		text, isText := all[i].(string)
		if out[i] = Value(all[i]); hide && isText {
			out[i] = Mark
		}
		hide = isText && secretFlag.MatchString(text)
	}
	return out
}

func object(o map[string]any) map[string]any {
	out := make(map[string]any, len(o))
	isSecret := o["kind"] == "Secret"
	_, named := o["name"].(string)
	for key, v := range o {
		switch {
		case key == "managedFields":
		case key == "annotations":
			out[key] = annotations(v)
		case isSecret && (key == "data" || key == "stringData"), named && key == "value":
			// The value of an environment variable, a header or a template variable.
			out[key] = hidden(v)
		case secretKey.MatchString(key) && !publicKey.MatchString(key):
			out[key] = hiddenTexts(v)
		default:
			out[key] = Value(v)
		}
	}
	return out
}

// hidden replaces all values of a map, and keeps its keys.
func hidden(v any) any {
	o, ok := v.(map[string]any)
	if !ok {
		return Mark
	}
	out := make(map[string]any, len(o))
	for key := range o {
		out[key] = Mark
	}
	return out
}

// hiddenTexts replaces a string, and the strings in a list. Values that have fields are redacted field by field.
func hiddenTexts(v any) any {
	switch v := v.(type) {
	case string:
		if v == "" {
			return v
		}
		return Mark
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = hiddenTexts(v[i])
		}
		return out
	}
	return Value(v)
}

func annotations(v any) any {
	all, ok := v.(map[string]any)
	if !ok {
		return Mark
	}
	out := make(map[string]any, len(all))
	for key, value := range all {
		text, _ := value.(string)
		switch {
		case strings.Contains(key, "last-applied"):
		case publicAnnotation.MatchString(key) && (!secretKey.MatchString(key) || publicKey.MatchString(key)):
			out[key] = Text(text)
		default:
			out[key] = Mark
		}
	}
	return out
}
