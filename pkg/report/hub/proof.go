package hub

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// proofTimeout is how long a gateway has to compare its sockets with the record. Its Envoy's admin interface has 3 s of
// that.
const proofTimeout = 5 * time.Second

// GatewayProof is the answer of one gateway about the tunnels of an edge.
type GatewayProof struct {
	Name    string
	Proof   *reportv1.Proof // nil: see Problem
	Problem error
}

// Prove makes every gateway of the installation compare the tunnels of an edge with its kernel's sockets now. A gateway
// that does not report here has a Problem.
func (h *Hub) Prove(ctx context.Context, edge model.EdgeRef) []GatewayProof {
	names := slices.Clone(h.admission.Gateways())
	h.mu.Lock()
	for name, g := range h.gateways {
		if g.connected {
			names = append(names, name)
		}
	}
	h.mu.Unlock()
	slices.Sort(names)
	names = slices.Compact(names)
	proofs := make([]GatewayProof, len(names))
	var asked sync.WaitGroup
	for i, name := range names {
		asked.Go(func() {
			proof, err := h.prove(ctx, name, edge)
			proofs[i] = GatewayProof{Name: name, Proof: proof, Problem: err}
		})
	}
	asked.Wait()
	return proofs
}

// prove asks one gateway.
func (h *Hub) prove(ctx context.Context, gateway string, edge model.EdgeRef) (*reportv1.Proof, error) {
	key := strings.Join([]string{"proof", gateway, edge.Node, edge.ID}, " ")
	return together(ctx, h, key, proofTimeout, func(ctx context.Context) (proof *reportv1.Proof, err error) {
		question := &reportv1.Question{Proof: &reportv1.ProofQuestion{Edge: &reportv1.Edge{
			Node:     edge.Node,
			TunnelId: edge.ID,
		}}}
		of := func(s *session) bool { return s.subject.Role == model.RoleGateway && s.subject.Node == gateway }
		q, forget, err := h.ask(of, question, maxEdgeAnswer)
		if err != nil {
			return nil, err
		}
		defer forget()
		err = q.all(ctx, func(a *reportv1.Answer) error {
			if p := a.GetProof(); p != nil {
				proof = &reportv1.Proof{
					Denied: p.GetDenied(), Closed: p.GetClosed(), Open: p.GetOpen(),
					Incomplete: printable.Text(p.GetIncomplete(), report.MaxText),
				}
			}
			return nil
		})
		if err == nil && proof == nil {
			err = errors.New("its agent's answer is empty")
		}
		return proof, err
	})
}
