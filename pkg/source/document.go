package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"

	"github.com/fairlead/fairlead/pkg/model"
)

// Input is the content of a file, or of another source.
type Input struct {
	Name string // for errors
	Data []byte
}

// document is one YAML document of an input. Its node has the line and the column of each field.
type document struct {
	name string
	node *yaml.Node
	json []byte
	head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
}

// yamlLine extracts the line from a parser's error.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// documents splits an input into documents. It unfolds Kubernetes lists.
func documents(in Input) (all []document, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(in.Data))
	for {
		var node yaml.Node
		if err := decoder.Decode(&node); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, syntaxError(in.Name, err)
		}
		if len(node.Content) == 0 || node.Content[0].Tag == "!!null" {
			continue
		}
		more, err := unfold(in.Name, node.Content[0])
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
}

func unfold(name string, node *yaml.Node) ([]document, error) {
	d := document{name: name, node: node}
	var value any
	if err := node.Decode(&value); err != nil {
		return nil, syntaxError(name, err)
	}
	if _, ok := value.(map[string]any); !ok {
		return nil, d.fault("", errors.New("must be a Kubernetes object or a fleet"))
	}
	var err error
	if d.json, err = json.Marshal(value); err != nil {
		return nil, d.fault("", errors.New("has a key that is not text"))
	}
	if err := json.Unmarshal(d.json, &d.head); err != nil {
		return nil, d.explain(err)
	}
	_, items := entry(node, "items")
	if !strings.HasSuffix(d.head.Kind, "List") || items == nil {
		return []document{d}, nil
	}
	var all []document
	for _, item := range items.Content {
		more, err := unfold(name, item)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

func syntaxError(name string, err error) error {
	found := yamlLine.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	if found == nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if found[1] == "" {
		return fmt.Errorf("%s: not YAML: %s", name, found[2])
	}
	return fmt.Errorf("%s:%s: not YAML: %s", name, found[1], found[2])
}

// decode decodes a document. A field of the wrong kind is an error; if strictly is set, so is an unknown field.
func (d document) decode(into any, strictly bool) error {
	if err := json.Unmarshal(d.json, into); err != nil {
		return d.explain(err)
	}
	if !strictly {
		return nil
	}
	unknown, err := kjson.UnmarshalStrict(d.json, into, kjson.DisallowUnknownFields)
	if err != nil {
		return d.explain(err)
	}
	var errs []error
	for _, problem := range unknown {
		var field kjson.FieldError
		if !errors.As(problem, &field) {
			errs = append(errs, d.fault("", problem))
			continue
		}
		errs = append(errs, d.fault(field.FieldPath(), errors.New("unknown field")))
	}
	return errors.Join(errs...)
}

// explain adds the position to an error of encoding/json.
func (d document) explain(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return d.fault(kind.Field, fmt.Errorf("is a %s, and must be a %s", kind.Value, kindName(kind.Type.Kind())))
	}
	return d.fault("", err)
}

// kindName returns the YAML term for a kind of Go.
func kindName(k reflect.Kind) string {
	switch k {
	case reflect.Slice, reflect.Array:
		return "list"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "map"
	case reflect.String, reflect.Bool:
		return k.String()
	}
	return "number"
}

// fault returns an error that names the file, the line, the column and the field.
func (d document) fault(field string, err error) error {
	if field == "" {
		return fmt.Errorf("%s: %w", d.position(field), err)
	}
	return fmt.Errorf("%s: %s: %w", d.position(field), field, err)
}

// problem is fault for an error of the model, whose text already contains the field. as is the name of the field in
// this document.
func (d document) problem(e *model.FieldError, as string) error {
	return fmt.Errorf("%s: %s: %q: %s: %s", d.position(as), as, e.Value, e.Problem, e.Cure)
}

// position returns file:line:column of a field such as spec.extraNames[1]: of its key, or of its item in a list. If
// the document lacks the field, it is the position of the deepest existing field on the path.
func (d document) position(field string) string {
	at, node := d.node, d.node
	for _, step := range steps(field) {
		key, value := entry(node, step)
		if value == nil {
			break
		}
		at, node = key, value
	}
	return fmt.Sprintf("%s:%d:%d", d.name, at.Line, at.Column)
}

// has returns whether the document has a field.
func (d document) has(field string) bool {
	node := d.node
	for _, step := range steps(field) {
		if _, node = entry(node, step); node == nil {
			return false
		}
	}
	return true
}

// steps returns the keys and indexes of a path.
func steps(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) })
}

// entry returns the key and the value of one step, or the item of a list as both; nil: there is none.
func entry(node *yaml.Node, step string) (key, value *yaml.Node) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i], node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
	}
	return nil, nil
}
