package agent

import (
	"context"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// answerProof compares the kernel's sockets with the record.
func (a *answers) answerProof(ctx context.Context, q *reportv1.Question) error {
	edge := q.GetProof().GetEdge()
	p := a.prove(ctx, model.EdgeRef{Node: edge.GetNode(), ID: edge.GetTunnelId()})
	return a.send(&reportv1.Answer{Number: q.GetNumber(), Proof: proofMessage(p)})
}

func proofMessage(p tunnels.Proof) *reportv1.Proof {
	return &reportv1.Proof{
		Denied: p.Denied, Closed: uint32(p.Closed), Open: uint32(p.Open),
		Incomplete: printable.Text(p.Incomplete, report.MaxText),
	}
}
