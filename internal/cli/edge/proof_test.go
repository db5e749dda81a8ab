package edge

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func TestARevocationIsProvenByEveryGateway(t *testing.T) {
	done := &reportv1.Proof{Denied: true, Closed: 2}
	tests := map[string]struct {
		proofs []collect.GatewayProof
		err    error
		want   string // printed
		proven bool
	}{
		"all have": {
			proofs: proofsOf(done, &reportv1.Proof{Denied: true}),
			want:   "gateway-0: closed 2 connections\ngateway-1: closed 0 connections\n",
			proven: true,
		},
		"one has a gap in its record": {
			proofs: proofsOf(done, &reportv1.Proof{Denied: true, Incomplete: "a line was lost"}),
			want:   "gateway-1: incomplete: a line was lost",
		},
		"one has a connection": {
			proofs: proofsOf(done, &reportv1.Proof{Denied: true, Open: 1}),
			want:   "gateway-1: closed 0 connections, 1 are open",
		},
		"one has not received it": {
			proofs: proofsOf(done, &reportv1.Proof{}),
			want:   "gateway-1: incomplete: it has not received",
		},
		"one does not answer":          {proofs: proofsOf(done, nil), want: "gateway-1: incomplete: it does not answer"},
		"there is no gateway":          {},
		"no xds-server can be reached": {err: errors.New("nothing listens")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var out strings.Builder
				err := waitProven(ctx, &out, func(context.Context) ([]collect.GatewayProof, error) { return tt.proofs, tt.err })
				if (err == nil) != tt.proven || !tt.proven && !errors.Is(err, errNotProven) ||
					tt.err != nil && !errors.Is(err, tt.err) {
					t.Errorf("got error %v", err)
				}
				if !strings.Contains(out.String(), tt.want) {
					t.Errorf("it prints %q, want %q", out.String(), tt.want)
				}
			})
		})
	}
}

func proofsOf(all ...*reportv1.Proof) (proofs []collect.GatewayProof) {
	for i, p := range all {
		one := collect.GatewayProof{Name: []string{"gateway-0", "gateway-1"}[i], Proof: p}
		if p == nil {
			one.Problem = "its agent does not report to this server"
		}
		proofs = append(proofs, one)
	}
	return proofs
}
