package redact

import (
	"regexp"
	"strings"
)

// secretKey finds names of fields whose texts are secret, publicKey those among them that only name something, or are public.
var (
	secretKey = regexp.MustCompile(`(?i)` + named + `|sha256|^kubeconfig$|passwd`)
	publicKey = regexp.MustCompile(`(?i)(?:name|ref|secret|namespace|issuer|version|path|kind|reason|type)$`)
)

// publicAnnotation finds annotations whose values stay, as far as they have the form of no secret. All others go: nobody knows what
// people and their tools keep there.
var publicAnnotation = regexp.MustCompile(`^(?:[a-z0-9.-]*fairlead\.dev|(?:[a-z0-9-]+\.)*cluster\.x-k8s\.io|deployment\.kubernetes\.io|controller-gen\.kubebuilder\.io)/`)

// Value returns what JSON or YAML holds (maps with texts as keys, lists, texts, numbers) without its secrets: what is secret by the
// name of its field, all data of Secrets, values of environments and of template variables, annotations of others, managed fields; and every text
// as Text returns it. The value that is given stays as it is.
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

// secretFlag is a flag whose value comes next.
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
		case isSecret && (key == "data" || key == "stringData"), named && key == "value": // of an environment, a header, a variable
			out[key] = hidden(v)
		case secretKey.MatchString(key) && !publicKey.MatchString(key):
			out[key] = hiddenTexts(v)
		default:
			out[key] = Value(v)
		}
	}
	return out
}

// hidden keeps the keys of a map, and nothing else.
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

// hiddenTexts hides a text, and texts in a list. What has fields of its own is looked at field by field.
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
