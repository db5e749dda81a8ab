package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// lastProof bounds one more query of the gateways after the deadline of a revocation, for the reason.
const lastProof = 10 * time.Second

var errNotProven = errors.New("not all gateways have proven that the edge's connections are closed")

// waitProven queries the gateways until each has proven that it has no connection of an edge any longer, and prints the
// last answer of each.
func waitProven(ctx context.Context, out io.Writer, prove func(context.Context) ([]collect.GatewayProof, error)) error {
	again := time.NewTicker(management.PollInterval)
	defer again.Stop()
	var lines []string
	var last error
	for {
		proofs, err := prove(ctx)
		if err == nil {
			var proven bool
			if lines, proven = proofLines(proofs); proven {
				_, err := fmt.Fprint(out, joinLines(lines))
				return err
			}
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			_, err := fmt.Fprint(out, joinLines(lines))
			return errors.Join(errNotProven, last, err)
		case <-again.C:
		}
	}
}

// proofLines describes each gateway's answer, and reports whether all of them have proven it.
func proofLines(proofs []collect.GatewayProof) (lines []string, proven bool) {
	proven = len(proofs) > 0
	for _, g := range proofs {
		line, ok := proofLine(g)
		lines, proven = append(lines, g.Name+": "+line), proven && ok
	}
	return lines, proven
}

func proofLine(g collect.GatewayProof) (line string, proven bool) {
	switch p := g.Proof; {
	case p == nil:
		line = "incomplete: it does not answer (" + g.Problem + "); check that its gateway-agent runs and reaches an " +
			"xds-server"
		return line, false
	case p.GetIncomplete() != "":
		return "incomplete: " + p.GetIncomplete(), false
	case !p.GetDenied():
		return "incomplete: it has not received the revocation yet; check that the controller and the xds-servers run", false
	case p.GetOpen() > 0:
		return fmt.Sprintf("closed %d connections, %d are open", p.GetClosed(), p.GetOpen()), false
	default:
		return fmt.Sprintf("closed %d connections", p.GetClosed()), true
	}
}

func joinLines(lines []string) (all string) {
	for _, line := range lines {
		all += line + "\n"
	}
	return all
}
