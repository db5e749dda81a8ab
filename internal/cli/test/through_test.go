package test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/traffic"
)

// TestThroughFailsWhenAClusterIsDown has fewer failures than what is allowed, and a Cluster that does not answer at the
// end of the observation, or answers again.
func TestThroughFailsWhenAClusterIsDown(t *testing.T) {
	const says = "prod/c1: does not answer: the last request failed"
	for _, down := range []bool{true, false} {
		for _, form := range []string{"json", "table"} {
			f := throughFlags{allowed: 100}
			f.Form = form
			var out strings.Builder
			cmd := &cobra.Command{}
			cmd.SetOut(&out)
			record := traffic.Record{Requests: 20, FailedRequests: 10, BrokenWatches: 1, BrokenConnections: 1, Down: down}
			err := f.report(cmd, &throughReport{Allowed: f.allowed, Clusters: []clusterTraffic{{"prod", "c1", record}}})
			var exit *command.Error
			if failed := errors.As(err, &exit) && exit.Code == 1; failed != down || (err != nil) != down {
				t.Errorf("down: %v: got %v", down, err)
			}
			if form == "table" {
				if strings.Contains(out.String(), says) != down {
					t.Errorf("down: %v: printed %s", down, out.String())
				}
				continue
			}
			var got throughReport
			if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
				t.Fatal(err)
			}
			if got.Failed != 12 || got.Clusters[0].Down != down || (got.Status == check.Broken) != down {
				t.Errorf("down: %v: got %+v", down, got)
			}
		}
	}
}

// TestOnlyRequestsMakeAClusterDown has a Cluster that is down: its broken watch is allowed, and its failed requests are
// not.
func TestOnlyRequestsMakeAClusterDown(t *testing.T) {
	c := clusterTraffic{Record: traffic.Record{Requests: 20, FailedRequests: 10, BrokenWatches: 1, Down: true}}
	got := c.results(false)
	want := []check.Status{check.Broken, check.Warning, check.OK}
	for i, r := range got {
		if r.Status != want[i] {
			t.Errorf("got %+v, want %s", r, want[i])
		}
	}
}
