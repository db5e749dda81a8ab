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

// RetryAnnotation is an annotation on the ConfigMap of the record. Each new value retries a rollout that has stopped
// once.
const RetryAnnotation = "fairlead.dev/retry"

// Phase is the progress of a rollout.
type Phase string

// The phases of a rollout. With PhaseNone there is no rollout: all nodes are served Record.Current.
const (
	PhaseNone    Phase = ""
	PhaseFirst   Phase = "first"   // the nodes of Record.Nodes are served Record.Next, all others Record.Current
	PhaseRest    Phase = "rest"    // all nodes are served Record.Next
	PhaseStopped Phase = "stopped" // all nodes are served Record.Current; Record.Reason is why
)

// Phases lists all phases with the names that users see.
var Phases = map[Phase]string{PhaseNone: "none", PhaseFirst: "first", PhaseRest: "rest", PhaseStopped: "stopped"}

// Record is the decision of the controller, which alone writes records.
type Record struct {
	// Initial is the profile with which the installation began. Changes of a profile are relative to it.
	Initial Profile   `json:"first,omitempty"`
	Current Profile   `json:"current"`
	Next    Profile   `json:"next,omitempty"`
	Phase   Phase     `json:"phase,omitempty"`
	Since   time.Time `json:"since"`            // when Phase was set
	Reason  string    `json:"reason,omitempty"` // why a rollout has stopped or ended: node and cause
	Nodes   []Member  `json:"nodes,omitempty"`  // the first wave
	Retried string    `json:"retried,omitempty"`
	// Size bounds the number of connected nodes, by which edges get lanes: see model.Installation.LanesFor. 0: not known.
	Size int `json:"size,omitempty"`
}

// Node is a gateway, or an edge of a tunnel.
type Node struct {
	Name string `json:"node"`         // node name
	ID   string `json:"id,omitempty"` // Tunnel.spec.id of an edge; empty: a gateway
}

// String returns the node as users see it.
func (n Node) String() string {
	if n.ID == "" {
		return "gateway " + n.Name
	}
	return "edge " + n.Name
}

// Compare orders gateways before edges, and then by id and name.
func (n Node) Compare(other Node) int {
	return cmp.Or(cmp.Compare(n.ID, other.ID), cmp.Compare(n.Name, other.Name))
}

// Member is a node of the first wave.
type Member struct {
	Node
	Tunnels map[string]int `json:"tunnels,omitempty"` // tunnels that the edge had when the wave began, by gateway
}

// Of returns the profile that a node is served.
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

// Equal reports whether two records are the same.
func (r Record) Equal(other Record) bool {
	mine, err := json.Marshal(r)
	theirs, otherErr := json.Marshal(other)
	return err == nil && otherErr == nil && string(mine) == string(theirs)
}

// Text returns the record as it is stored.
func (r Record) Text() (string, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return string(text), err
}

// ParseRecord reads the record from the data of its ConfigMap. It returns nil without an error if there is none.
func ParseRecord(data map[string]string) (*Record, error) {
	text, there := data[RecordKey]
	if !there {
		return nil, nil //nolint:nilnil // a missing record is not an error
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

// NodeOf returns the node of a certificate's subject.
func NodeOf(s model.Subject) Node { return Node{Name: s.Node, ID: s.ID} }
