package collect

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// proofTimeout exceeds the time that a server waits for gateways.
const proofTimeout = 7 * time.Second

// GatewayProof is the state of a gateway's sockets of the tunnels of an edge.
type GatewayProof struct {
	Name    string
	Proof   *reportv1.Proof // nil: see Problem
	Problem string
}

// Prove makes all gateways compare the tunnels of an edge with their kernels' sockets now, and returns the answers
// sorted by name. A gateway that reports to no server that answered has a Problem. The error means that no server
// answered.
func (s *Servers) Prove(ctx context.Context, edge model.EdgeRef) ([]GatewayProof, error) {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	request := &inspectv1.ProveRequest{Edge: &reportv1.Edge{Node: edge.Node, TunnelId: edge.ID}}
	answers := make([]*inspectv1.ProveAnswer, len(s.all))
	errs := s.each(ctx, func(ctx context.Context, i int, c *connection) (err error) {
		answers[i], err = inspectv1.NewInspectClient(c.conn).Prove(ctx, request)
		return err
	})
	return mergeProofs(answers), answered(errs)
}

// mergeProofs joins the answers of the xds-servers, nil if there is none, in order of gateways. A gateway reports to
// one of the servers; a proof takes precedence over a problem.
func mergeProofs(answers []*inspectv1.ProveAnswer) []GatewayProof {
	proofs := map[string]GatewayProof{}
	for _, answer := range answers {
		for _, g := range answer.GetGateways() {
			if one := proofs[g.GetName()]; one.Proof == nil {
				proofs[g.GetName()] = GatewayProof{
					Name:    g.GetName(),
					Proof:   g.GetProof(),
					Problem: cmp.Or(g.GetError(), one.Problem),
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(proofs), func(a, b GatewayProof) int { return strings.Compare(a.Name, b.Name) })
}

// Prove implements the service.
func (s *service) Prove(ctx context.Context, request *inspectv1.ProveRequest) (*inspectv1.ProveAnswer, error) {
	answer := &inspectv1.ProveAnswer{}
	edge := model.EdgeRef{Node: request.GetEdge().GetNode(), ID: request.GetEdge().GetTunnelId()}
	for _, g := range s.config.Hub.Prove(ctx, edge) {
		one := &inspectv1.GatewayProof{Name: g.Name, Proof: g.Proof}
		if g.Problem != nil {
			one.Error = explain(g.Problem).Error()
		}
		answer.Gateways = append(answer.Gateways, one)
	}
	return answer, nil
}
