package source

import (
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// file is a fleet in YAML. Addresses are host:port.
type file struct {
	Domain   string        `json:"domain"`
	Public   string        `json:"public"`
	Control  string        `json:"control"`
	Gateways []fileGateway `json:"gateways"`
	Workers  int           `json:"workers"`
	// GatewaysPerTunnel is model.Installation.GatewaysPerTunnel.
	GatewaysPerTunnel int           `json:"gatewaysPerTunnel"`
	Clusters          []fileCluster `json:"clusters"`
}

type fileGateway struct {
	Name   string `json:"name"`
	Peer   string `json:"peer"`
	Public string `json:"public"`
}

type fileCluster struct {
	Namespace  string   `json:"namespace"`
	Name       string   `json:"name"`
	ID         string   `json:"id"`
	APIServer  string   `json:"apiServer"`
	Others     []string `json:"others"`
	ExtraNames []string `json:"extraNames"`
	Revoked    []string `json:"revoked"`
	Limits     struct {
		Connections int64 `json:"connections"`
		Pending     int64 `json:"pending"`
		Bandwidth   int64 `json:"bandwidth"` // bytes/s
	} `json:"limits"`
}

// Parse parses a fleet in YAML. Unlike watched objects, a file must be valid as a whole: the error joins all problems,
// including unknown fields. All of its Tunnels count as equally old.
func Parse(data []byte) (model.Fleet, error) {
	var f file
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return model.Fleet{}, fmt.Errorf("reading fleet: %w", err)
	}
	installation, errs := f.installation()
	candidates, more := f.candidates()
	errs = append(errs, more...)
	fleet := model.Fleet{Installation: installation}
	for i, r := range decision.Build(installation.Domain, &decision.Names{}, candidates) {
		for _, problem := range problems(r) {
			errs = append(errs, fmt.Errorf("checking workload cluster %s: %w", candidates[i].Key, problem))
		}
		fleet.Clusters = append(fleet.Clusters, r.Cluster)
	}
	if err := errors.Join(errs...); err != nil {
		return model.Fleet{}, err
	}
	return fleet, nil
}

func (f file) installation() (model.Installation, []error) {
	inst := model.Installation{
		Domain: model.TunnelDomain(f.Domain), Workers: f.Workers, GatewaysPerTunnel: f.GatewaysPerTunnel,
	}
	var errs []error
	// Validate reports missing fields.
	inst.Public, errs = parseAddress(f.Public, errs)
	inst.Control, errs = parseAddress(f.Control, errs)
	for _, g := range f.Gateways {
		gateway := model.Gateway{Name: g.Name}
		gateway.Peer, errs = parseAddress(g.Peer, errs)
		gateway.Public, errs = parseAddress(g.Public, errs)
		inst.Gateways = append(inst.Gateways, gateway)
	}
	if len(errs) == 0 {
		if err := inst.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("checking installation: %w", err))
		}
	}
	return inst, errs
}

func (f file) candidates() (candidates []decision.Candidate, errs []error) {
	for _, c := range f.Clusters {
		candidate := decision.Candidate{
			Key:        model.Key{Namespace: c.Namespace, Name: c.Name},
			ID:         c.ID,
			ExtraNames: c.ExtraNames,
			Revoked:    c.Revoked,
			Limits:     model.Limits(c.Limits),
		}
		candidate.APIServer, errs = parseAddress(c.APIServer, errs)
		for _, other := range c.Others {
			var e model.Endpoint
			e, errs = parseAddress(other, errs)
			candidate.Others = append(candidate.Others, e)
		}
		candidates = append(candidates, candidate)
	}
	return candidates, errs
}

// parseAddress parses an address that may be empty.
func parseAddress(s string, errs []error) (model.Endpoint, []error) {
	if s == "" {
		return model.Endpoint{}, errs
	}
	e, err := model.ParseEndpoint(s)
	if err != nil {
		errs = append(errs, err)
	}
	return e, errs
}

// problems returns all errors of a resolution.
func problems(r decision.Resolution) []error {
	var errs []error
	if r.Fatal != nil {
		errs = append(errs, r.Fatal)
	}
	for _, refused := range r.Refused {
		errs = append(errs, refused)
	}
	return errs
}
