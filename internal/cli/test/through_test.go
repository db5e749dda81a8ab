package test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// TestACommandThatIsNotStartedHasAReport has two Clusters, one of which does not answer before the command.
func TestACommandThatIsNotStartedHasAReport(t *testing.T) {
	broken := check.Report{
		First: check.HopPort, Hops: []check.Result{{ID: check.HopPort, Status: check.Broken, Cure: "open the port"}},
	}
	keys := []client.ObjectKey{{Namespace: "prod", Name: "c1"}, {Namespace: "prod", Name: "c2"}}
	failures := []*traffic.Failure{nil, failureAtStart(time.Unix(1_000_000, 0), errors.New("refused"), broken)}
	for form, want := range map[string][]string{
		"json": {`"status": "broken"`, `"error": "` + notStarted + `"`, `"hop": "port"`, `"failed": 1`},
		"table": {
			"command: " + notStarted + "\n", "prod/c2: does not answer", "The hop port was broken first", "open the port",
			"BROKEN: 1 failures, 0 allowed",
		},
	} {
		f := throughFlags{}
		f.Form, f.junit = form, filepath.Join(t.TempDir(), "junit.xml")
		var out strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		err := f.reportNotStarted(cmd, keys, failures, []string{"helm", "upgrade"})
		var exit *command.Error
		if !errors.As(err, &exit) || exit.Code != 1 {
			t.Errorf("%s: got %v", form, err)
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%s: %q is not in %s", form, text, out.String())
			}
		}
		var s suite
		if text, err := os.ReadFile(f.junit); err != nil || xml.Unmarshal(text, &s) != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if s.Tests != 3 || s.Failures != 1 || s.Skipped != 2 || s.Cases[1].Failure == nil {
			t.Errorf("%s: JUnit is %+v", form, s)
		}
	}
}

// TestAFailureAtTheStartBlamesOnlyABrokenHop has a hop with a warning, which need not be the reason.
func TestAFailureAtTheStartBlamesOnlyABrokenHop(t *testing.T) {
	warned := check.Report{
		First: check.HopTunnels, Hops: []check.Result{{ID: check.HopTunnels, Status: check.Warning}},
	}
	if f := failureAtStart(time.Now(), errors.New("refused"), warned); f.Hop != "" || f.Detail == "" {
		t.Errorf("got %+v", f)
	}
}
