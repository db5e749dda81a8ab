package goals

import (
	_ "embed"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"
)

//go:embed causes.yaml
var causesFile []byte

// Cause is why a goal is not met. It covers the cases that it names, and no figure that is worse than the one that it
// explains: a later loss needs a cause of its own.
type Cause struct {
	Goal string `json:"goal"`
	// Until maps the labels of cases to the worst compared figure that the cause explains: of a goal that is relative to
	// another subject the ratio, otherwise the figure.
	Until map[string]float64 `json:"until"`
	// TimesPair means that Until has ratios to the pair, which hold on slower machines too.
	TimesPair bool   `json:"timesPair"`
	Text      string `json:"text"` // one sentence
	// Profile is the profile that shows the cause, as a path below docs with an anchor.
	Profile string `json:"profile"`
}

// Causes returns the recorded causes. An incomplete one, and one for an unknown goal or case, is an error.
func Causes() ([]Cause, error) { return parse(causesFile) }

func parse(file []byte) ([]Cause, error) {
	var causes []Cause
	if err := yaml.UnmarshalStrict(file, &causes); err != nil {
		return nil, fmt.Errorf("reading the causes: %w", err)
	}
	for _, c := range causes {
		i := slices.IndexFunc(All, func(g Goal) bool { return g.ID == c.Goal })
		switch {
		case i < 0:
			return nil, fmt.Errorf("causes: %q is not the ID of a goal", c.Goal)
		case c.Text == "" || c.Profile == "" || len(c.Until) == 0:
			return nil, fmt.Errorf("causes: %s: text, profile and until are required", c.Goal)
		}
		for label := range c.Until {
			if !slices.ContainsFunc(All[i].Cases, func(of Case) bool { return of.Label == label }) {
				return nil, fmt.Errorf("causes: %s has no case %q", c.Goal, label)
			}
		}
	}
	return causes, nil
}

// find returns the cause that explains a result, or nil.
func find(causes []Cause, g Goal, r CaseResult) *Cause {
	for i, c := range causes {
		until, ok := c.Until[r.Label]
		explained := r.Compared
		if c.TimesPair {
			explained = r.timesPair
		}
		if c.Goal == g.ID && ok && g.reaches(explained, until) {
			return &causes[i]
		}
	}
	return nil
}
