// Package monitoring contains Prometheus' rules and Grafana's dashboard for Fairlead, and parses them for tests. It
// has no input; the output is expressions, and the names of the metrics in them.
package monitoring

import (
	"embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

//go:embed rules.yaml dashboard.json
var files embed.FS

// Rule is a recording or an alerting rule.
type Rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Group is a group of rules.
type Group struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Rules returns rules.yaml.
func Rules() ([]Group, error) {
	data, err := files.ReadFile("rules.yaml")
	if err != nil {
		return nil, err
	}
	var all struct {
		Groups []Group `json:"groups"`
	}
	if err := yaml.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("reading rules.yaml: %w", err)
	}
	return all.Groups, nil
}

// Query is an expression of a panel of the dashboard.
type Query struct{ Panel, Expr string }

// Queries returns the queries of dashboard.json.
func Queries() ([]Query, error) {
	data, err := files.ReadFile("dashboard.json")
	if err != nil {
		return nil, err
	}
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		return nil, fmt.Errorf("reading dashboard.json: %w", err)
	}
	var all []Query
	for _, p := range dashboard.Panels {
		for _, t := range p.Targets {
			all = append(all, Query{p.Title, t.Expr})
		}
	}
	return all, nil
}

var (
	quoted = regexp.MustCompile(`"[^"]*"`)
	lists  = regexp.MustCompile(`\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)|\{[^}]*\}|\[[^]]*\]`)
	word   = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*(\s*\()?`)
	number = regexp.MustCompile(`\b[0-9.]+[a-z]*\b`)
	// operators are words that are not metrics. Functions are recognised by their parenthesis.
	operators = []string{"and", "or", "unless", "by", "on", "bool", "offset"}
)

// Names returns the metrics, including recorded ones, in an expression, sorted and without duplicates.
func Names(expr string) []string {
	expr = lists.ReplaceAllString(quoted.ReplaceAllString(expr, ""), "")
	expr = number.ReplaceAllString(expr, "")
	var names []string
	for _, w := range word.FindAllString(expr, -1) {
		if w[len(w)-1] != '(' && !slices.Contains(operators, w) {
			names = append(names, w)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
