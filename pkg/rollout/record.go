package rollout

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// RecordKey is the key of the record in its ConfigMap.
const RecordKey = "rollout"

// RetryAnnotation on the ConfigMap of the record has a rollout that has stopped tried again, once for each value.
const RetryAnnotation = "fairlead.dev/retry"

// Phase is how far a rollout is.
type Phase string

// The phases of a rollout. Without one there is none: all nodes are served Record.Current.
const (
	PhaseNone    Phase = ""
	PhaseFirst   Phase = "first"   // the nodes of Record.Nodes are served Record.Next, all others Record.Current
	PhaseRest    Phase = "rest"    // all nodes are served Record.Next
	PhaseStopped Phase = "stopped" // all nodes are served Record.Current; Record.Reason is why
)

// Phases are all phases, by the names that people see.
var Phases = map[Phase]string{PhaseNone: "none", PhaseFirst: "first", PhaseRest: "rest", PhaseStopped: "stopped"}

// Record is what the controller has decided. Only it writes records.
type Record struct {
	// First is the profile with which the installation began: what a profile changes of it is seen from there.
	First   Profile   `json:"first,omitempty"`
	Current Profile   `json:"current"`
	Next    Profile   `json:"next,omitempty"`
	Phase   Phase     `json:"phase,omitempty"`
	Since   time.Time `json:"since"`            // when Phase became so
	Reason  string    `json:"reason,omitempty"` // why a rollout has stopped or ended: node and cause
	Nodes   []Member  `json:"nodes,omitempty"`  // the first wave
	Retried string    `json:"retried,omitempty"`
}

// Node is a gateway, or an edge of a tunnel.
type Node struct {
	Name string `json:"node"`         // node name
	ID   string `json:"id,omitempty"` // Tunnel.spec.id of an edge; empty: a gateway
}

// String names a node for people.
func (n Node) String() string {
	if n.ID == "" {
		return "gateway " + n.Name
	}
	return "edge " + n.Name
}

// Compare orders gateways before edges.
func (n Node) Compare(other Node) int {
	return cmp.Or(cmp.Compare(n.ID, other.ID), cmp.Compare(n.Name, other.Name))
}

// Member is a node of the first wave.
type Member struct {
	Node
	Tunnels map[string]int `json:"tunnels,omitempty"` // that the edge had when the wave began, by gateway
}

// Of is the profile that a node is served.
func (r Record) Of(n Node) Profile {
	switch {
	case r.Phase == PhaseRest:
		return r.Next
	case r.Phase == PhaseFirst && r.IsMember(n):
		return r.Next
	}
	return r.Current
}

// IsMember reports whether a node is in the first wave.
func (r Record) IsMember(n Node) bool {
	return slices.ContainsFunc(r.Nodes, func(m Member) bool { return m.Node == n })
}

// Equal compares records.
func (r Record) Equal(other Record) bool {
	mine, err := json.Marshal(r)
	theirs, otherErr := json.Marshal(other)
	return err == nil && otherErr == nil && string(mine) == string(theirs)
}

// Text is a record as it is kept.
func (r Record) Text() (string, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return string(text), err
}

// ParseRecord reads the record in the data of its ConfigMap. Nil: there is none.
func ParseRecord(data map[string]string) (*Record, error) {
	text, there := data[RecordKey]
	if !there {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	var r Record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("reading record of rollouts: %w", err)
	}
	if _, known := Phases[r.Phase]; !known {
		return nil, fmt.Errorf("reading record of rollouts: phase %q is not known", r.Phase)
	}
	if r.Current == "" || r.Phase != PhaseNone && r.Next == "" {
		return nil, errors.New("reading record of rollouts: a profile is missing")
	}
	return &r, nil
}

// NodeOf is the node of a certificate.
func NodeOf(s model.Subject) Node { return Node{Name: s.Node, ID: s.ID} }
