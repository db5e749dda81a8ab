package report_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report/agent"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func TestARejectionIsLoggedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	for _, node := range []string{"edge-1", "edge-2"} {
		s := edgeOf(node, idA)
		client := reportv1.NewReportClient(w.Dial(t, &s, p.Address))
		for range 5 { // a rejected caller retries
			stream, err := client.Gateway(t.Context())
			if err == nil {
				_, err = stream.Recv()
			}
			if status.Code(err) != codes.PermissionDenied {
				t.Fatalf("got %v, want a refusal", err)
			}
		}
	}
	if n := strings.Count(w.Text.String(), "report rejected"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}

func TestARevokedEdgeReceivesItsRevocation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	v := w.view(t, p.Address)
	stop := w.edge(t, edgeOf("edge-2", idA), p.Address)
	defer stop()
	s := edgeOf("edge-1", idA)
	conn := w.Dial(t, &s, p.Address)
	report := func() *reportv1.EdgeReport { return &reportv1.EdgeReport{Form: "Process"} }
	ended := make(chan error, 1)
	go func() {
		ended <- agent.SendEdge(t.Context(), conn, agent.EdgeSource{Reopen: quick.Reopen, Report: report}, w.Log)
	}()
	v.shows(t, idA, "known ; edge-1+; edge-2+")
	w.Rules.Set(model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}}}, false)
	select {
	case err := <-ended:
		if !errors.Is(err, certs.ErrRefused) {
			t.Errorf("got %v, want a refusal", err)
		}
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	v.shows(t, idA, "known ; edge-1; edge-2+")
	if err := agent.SendEdge(t.Context(), conn, agent.EdgeSource{Reopen: quick.Reopen, Report: report},
		w.Log); !errors.Is(err, certs.ErrRefused) {
		t.Errorf("once more: got %v, want a refusal", err)
	}
	v.shows(t, idA, "known ; edge-1; edge-2+")
}
