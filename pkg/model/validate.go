package model

import (
	"fmt"
	"net"
	"strings"
)

// FieldError is an error in one field of an object, with its remedy.
type FieldError struct {
	Field   string // as the user wrote it, such as spec.extraNames[1]
	Value   string
	Problem string
	Cure    string
	Kind    FieldErrorKind
}

// FieldErrorKind is what is wrong with a field, for programs. It decides the reason of a condition.
type FieldErrorKind int

// Kinds of FieldErrors.
const (
	// Invalid: the value is not valid.
	Invalid FieldErrorKind = iota
	// Taken: the value is valid, but another object has it.
	Taken
	// Overlap: the value is valid, but a part of the Cluster's Pods or Services would lead elsewhere.
	Overlap
	// HasGateway: the value is valid, but contains an address of a gateway.
	HasGateway
	// NeverDial: the value has only addresses in NeverDialled.
	NeverDial
	// TooMany: the value is valid, but there are as many older ones as there may be.
	TooMany
)

// Error returns the field, its value, the problem and the remedy.
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %q: %s: %s", e.Field, e.Value, e.Problem, e.Cure)
}

// Validate checks that the host is an IP address or a DNS name (one label is enough) and that the port is set.
func (e Endpoint) Validate() error {
	if net.ParseIP(e.Host) == nil {
		// Addresses are resolved in the network of the dialler. There a single label can be a valid name, and so can a
		// name with an underscore, which occurs in no certificate and no SNI.
		if err := validateLabels(e.Host, hostPattern); err != nil {
			return fmt.Errorf("host %q is invalid: must be an IP address or a DNS name", e.Host)
		}
	}
	if e.Port == 0 {
		return fmt.Errorf("address %q has no port", e.Host)
	}
	return nil
}

// Validate checks a workload cluster, except its extra names. A cluster with an error cannot be served. The error is
// nil or a *FieldError. Package decision decides whether another cluster has the same names.
func (w WorkloadCluster) Validate() error {
	if err := ValidateID(w.ID); err != nil {
		return &FieldError{
			Field:   "spec.id",
			Value:   w.ID,
			Problem: err.Error(),
			Cure:    "leave it empty and let the controller choose it",
		}
	}
	if err := ValidateDNSName(w.Hostname); err != nil {
		return &FieldError{Field: "metadata.name", Value: w.Key.Name, Problem: err.Error(), Cure: "rename the Cluster"}
	}
	if err := w.APIServer.Validate(); err != nil {
		return &FieldError{
			Field:   "spec.apiServer",
			Value:   w.APIServer.String(),
			Problem: err.Error(),
			Cure:    "give an IP address or a DNS name, and a port",
		}
	}
	return nil
}

// ValidateExtraNames returns the extra names that can be served, and an error for each of the others.
func (d TunnelDomain) ValidateExtraNames(names []string) (good []string, bad []*FieldError) {
	seen := map[string]bool{}
	for i, name := range names {
		problem, cure := "", "give a lower-case DNS name that is in the serving certificate, or remove it"
		switch err := ValidateDNSName(name); {
		case err != nil:
			problem = err.Error()
		case d.Contains(name):
			problem, cure = fmt.Sprintf("it is below the tunnel domain %s, where Fairlead assigns the names", d), "remove it"
		case seen[name]:
			problem, cure = "it is there twice", "remove one of them"
		}
		if problem != "" {
			bad = append(
				bad, &FieldError{Field: ExtraNameField(i), Value: name, Problem: strings.TrimSpace(problem), Cure: cure},
			)
			continue
		}
		seen[name] = true
		good = append(good, name)
	}
	return good, bad
}

// ValidateOthers returns the further apiservers that can be dialled, and an error for each of the others.
func ValidateOthers(others []Endpoint) (good []Endpoint, bad []*FieldError) {
	for i, e := range others {
		if err := e.Validate(); err != nil {
			bad = append(bad, &FieldError{
				Field: fmt.Sprintf("spec.apiServer.others[%d]", i), Value: e.String(), Problem: err.Error(),
				Cure: "give an IP address or a DNS name, and a port, or remove it",
			})
			continue
		}
		good = append(good, e)
	}
	return good, bad
}

// ValidateRevoked returns the valid node names, and an error for each of the others.
func ValidateRevoked(nodes []string) (good []string, bad []*FieldError) {
	for i, node := range nodes {
		if err := ValidateNodeName(node); err != nil {
			bad = append(bad, &FieldError{
				Field: fmt.Sprintf("spec.revokedEdges[%d]", i), Value: node, Problem: err.Error(),
				Cure: "give the name of an edge as the status of the Tunnel has it, or remove it",
			})
			continue
		}
		good = append(good, node)
	}
	return good, bad
}

// ExtraNameField returns the path of the i-th extra name in a Tunnel.
func ExtraNameField(i int) string { return fmt.Sprintf("spec.extraNames[%d]", i) }
