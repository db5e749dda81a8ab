package v1alpha1_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/golden"
)

// crds are the CRDs, as the apiserver reads them.
func crds(t *testing.T) (all []apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	for _, name := range []string{"tunnels", "remotenetworks"} {
		data, err := os.ReadFile("../../deploy/kubernetes/crd/fairlead.dev_" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &crd); err != nil {
			t.Fatal(err)
		}
		all = append(all, crd)
	}
	return all
}

// TestRulesAreCheapForEarlierApiservers rejects what otherwise only `make test-matrix` would find: an apiserver before
// 1.37 assumes that metadata.name has any length, so it does not install a CRD with a rule that builds strings from it.
func TestRulesAreCheapForEarlierApiservers(t *testing.T) {
	for _, crd := range crds(t) {
		for _, version := range crd.Spec.Versions {
			rules := version.Schema.OpenAPIV3Schema.XValidations
			if len(rules) == 0 {
				t.Errorf("the CRD %s has no rules", crd.Name)
			}
			for _, one := range rules {
				if strings.Contains(one.Rule, "self.metadata.name +") || strings.Contains(one.Rule, "+ self.metadata.name") {
					t.Errorf("%s: the rule builds a string from the name: compare a part of a bounded field with it", one.Rule)
				}
			}
		}
	}
}

// TestFieldsMatchTheCode compares the documented fields with the CRDs, and the documented labels, annotations and
// keys with the constants.
func TestFieldsMatchTheCode(t *testing.T) {
	var b strings.Builder
	b.WriteString(
		"# Fields of Tunnels and RemoteNetworks\n\n<!-- Written by `make update-golden` from the CRDs and the comments in " +
			"api/v1alpha1: change them there. -->\n",
	)
	for _, crd := range crds(t) {
		writeKind(t, &b, &crd)
	}
	b.WriteString(
		"\n## Names on objects\n\nLabels, annotations and finalizers of Fairlead:\n\n| name | description |\n|---|---|\n",
	)
	for _, c := range constants(t, "names.go") {
		if name, ok := strings.CutPrefix(c.value, "fairlead.dev/"); ok && !strings.HasPrefix(c.name, "Signer") && name != "" {
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.value, cell(c.text))
		}
	}
	golden.CheckFile(t, reference+"fields.md", []byte(b.String()))
}

// writeKind writes the fields of a kind.
func writeKind(t *testing.T, b *strings.Builder, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	kind, of := crd.Spec.Names.Kind, ""
	if kind != "Tunnel" {
		of = kind + ": "
	}
	for _, version := range crd.Spec.Versions {
		schema := version.Schema.OpenAPIV3Schema
		fmt.Fprintf(
			b, "\n`apiVersion: %s/%s`, `kind: %s`. %s\n", crd.Spec.Group, version.Name, kind, oneLine(schema.Description),
		)
		writeRules(b, "", schema)
		for _, part := range []string{"spec", "status"} {
			props := schema.Properties[part]
			fmt.Fprintf(
				b, "\n## %s%s\n\n%s\n\n| field | type | description |\n|---|---|---|\n", of, part, oneLine(props.Description),
			)
			writeFields(t, b, part, &props)
			writeRules(b, part, &props)
		}
	}
}

// writeFields writes a row for each field below s. A list's fields have [] after the list's name.
func writeFields(t *testing.T, b *strings.Builder, path string, s *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field, at := s.Properties[name], path+"."+name
		description := cell(oneLine(field.Description))
		if description == "" {
			t.Errorf("%s: it has no description", at)
		}
		if slices.Contains(s.Required, name) {
			description += " Required."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", at, kindOf(&field), description+bounds(&field))
		switch {
		case at == "status.conditions": // defined by Kubernetes
		case field.Items != nil && field.Items.Schema != nil:
			writeFields(t, b, at+"[]", field.Items.Schema)
		default:
			writeFields(t, b, at, &field)
		}
	}
}

// kindOf returns a short name of a field's type.
func kindOf(s *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case s.XIntOrString:
		return "number or quantity"
	case s.Items != nil && s.Items.Schema != nil:
		return "list of " + kindOf(s.Items.Schema)
	case s.Format == "date-time":
		return "time"
	case s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil:
		return "map of " + kindOf(s.AdditionalProperties.Schema)
	}
	return s.Type
}

// bounds describes the values that the apiserver rejects.
func bounds(s *apiextensionsv1.JSONSchemaProps) string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if len(s.Enum) > 0 {
		var values []string
		for _, v := range s.Enum {
			values = append(values, "`"+strings.Trim(string(v.Raw), `"`)+"`")
		}
		add("one of %s", strings.Join(values, ", "))
	}
	if s.Default != nil {
		add("default `%s`", s.Default.Raw)
	}
	if s.Minimum != nil {
		add("at least %v", *s.Minimum)
	}
	if s.Maximum != nil {
		add("at most %v", *s.Maximum)
	}
	if s.MaxLength != nil {
		add("at most %d characters", *s.MaxLength)
	}
	if s.MaxItems != nil {
		add("at most %d entries", *s.MaxItems)
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, "; ") + ")"
}

// writeRules writes the other validation rules, with the messages that users see.
func writeRules(b *strings.Builder, path string, s *apiextensionsv1.JSONSchemaProps) {
	messages := map[string]bool{}
	collect(path, s, messages)
	if path == "" { // rules of the object as a whole; the others are written with their field
		messages = map[string]bool{}
		for _, rule := range s.XValidations {
			messages[rule.Message] = true
		}
	}
	if len(messages) == 0 {
		return
	}
	b.WriteString("\nThe apiserver rejects invalid values, with these messages:\n\n")
	for _, m := range slices.Sorted(maps.Keys(messages)) {
		fmt.Fprintf(b, "- %s\n", cell(m))
	}
}

func collect(path string, s *apiextensionsv1.JSONSchemaProps, into map[string]bool) {
	for _, rule := range s.XValidations {
		if rule.Message != "" {
			into[fmt.Sprintf("`%s`: %s", path, rule.Message)] = true
		}
	}
	if s.Items != nil && s.Items.Schema != nil {
		collect(path+"[]", s.Items.Schema, into)
	}
	for name, field := range s.Properties {
		collect(path+"."+name, &field, into)
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// cell escapes text for a Markdown table or list.
func cell(text string) string { return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(text) }
