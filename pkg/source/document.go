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

	"github.com/fairlead/fairlead/pkg/model"
)

// Input is one file, or what came by another way.
type Input struct {
	Name string // for errors
	Data []byte
}

// document is one YAML document of an input, with its lines.
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

// yamlLine is where a parser's error says that it is.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// documents splits an input. Lists of Kubernetes are taken apart.
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
		return nil, d.fault("", errors.New("is neither a Kubernetes object nor a fleet"))
	}
	var err error
	if d.json, err = json.Marshal(value); err != nil {
		return nil, d.fault("", errors.New("has a key that is no text"))
	}
	if err := json.Unmarshal(d.json, &d.head); err != nil {
		return nil, d.explain(err)
	}
	items := child(node, "items")
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
		return fmt.Errorf("%s: no YAML: %s", name, found[2])
	}
	return fmt.Errorf("%s:%s: no YAML: %s", name, found[1], found[2])
}

// decode reads a document; strictly: fields that are not known are errors.
func (d document) decode(into any, strictly bool) error {
	decoder := json.NewDecoder(bytes.NewReader(d.json))
	if strictly {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(into); err != nil {
		return d.explain(err)
	}
	return nil
}

// unknownField is what encoding/json says of one.
var unknownField = regexp.MustCompile(`unknown field "([^"]*)"`)

// explain says where an error of encoding/json is.
func (d document) explain(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return d.fault(kind.Field, fmt.Errorf("is a %s, and has to be a %s", kind.Value, kindName(kind.Type.Kind())))
	}
	if found := unknownField.FindStringSubmatch(err.Error()); found != nil {
		if path := pathOf(d.node, found[1]); path != "" {
			return d.fault(path, errors.New("there is no such field"))
		}
	}
	return d.fault("", err)
}

// kindName is what people call a kind of Go.
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

// fault is an error that names the file, the line and the field.
func (d document) fault(field string, err error) error {
	line := lineOf(d.node, field)
	if field == "" {
		return fmt.Errorf("%s:%d: %w", d.name, line, err)
	}
	return fmt.Errorf("%s:%d: %s: %w", d.name, line, field, err)
}

// problem is fault for what the model says, whose text has the field already; as is what this document calls the field.
func (d document) problem(e *model.FieldError, as string) error {
	return fmt.Errorf("%s:%d: %s: %q: %s: %s", d.name, lineOf(d.node, as), as, e.Value, e.Problem, e.Cure)
}

// child is the value of a key; nil: there is none.
func child(node *yaml.Node, key string) *yaml.Node {
	if node.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == key {
				return node.Content[i+1]
			}
		}
	}
	return nil
}

// hasField says whether a path is there.
func hasField(node *yaml.Node, path ...string) bool {
	for _, key := range path {
		if node = child(node, key); node == nil {
			return false
		}
	}
	return true
}

// step is one part of a path: a key, with an index or without.
var step = regexp.MustCompile(`^([^\[\]]+)((?:\[\d+\])*)$`)

// lineOf is the line of a field such as spec.extraNames[1], or of as much of it as there is.
func lineOf(node *yaml.Node, path string) int {
	line := node.Line
	if path == "" {
		return line
	}
	for part := range strings.SplitSeq(path, ".") {
		found := step.FindStringSubmatch(part)
		if found == nil {
			return line
		}
		next := child(node, found[1])
		if next == nil {
			return line
		}
		node, line = next, keyLine(node, found[1])
		for index := range strings.SplitSeq(strings.Trim(found[2], "[]"), "][") {
			i, err := strconv.Atoi(index)
			if err != nil || node.Kind != yaml.SequenceNode || i >= len(node.Content) {
				break
			}
			node = node.Content[i]
			line = node.Line
		}
	}
	return line
}

func keyLine(node *yaml.Node, key string) int {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i].Line
		}
	}
	return node.Line
}

// pathOf finds the first field of a name, from the top.
func pathOf(node *yaml.Node, key string) string {
	switch node.Kind {
	case yaml.MappingNode:
		if child(node, key) != nil {
			return key
		}
		for i := 0; i+1 < len(node.Content); i += 2 {
			if path := pathOf(node.Content[i+1], key); path != "" {
				return node.Content[i].Value + "." + path
			}
		}
	case yaml.SequenceNode:
		for i, item := range node.Content {
			if path := pathOf(item, key); path != "" {
				return fmt.Sprintf("[%d].%s", i, path)
			}
		}
	}
	return ""
}
