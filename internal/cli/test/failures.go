package test

import (
	"fmt"
	"time"

	checkcommand "github.com/fairlead/fairlead/internal/cli/check"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

// maxPrinted bounds the failures of one Cluster that are printed for people. -o json has more.
const maxPrinted = 10

// printThrough writes a table of the Clusters, the failures, and a line that sums them up.
func printThrough(p *output.Page, r *throughReport) {
	t := &output.Table{Columns: output.Columns(
		"NAMESPACE", "CLUSTER", "REQUESTS", "FAILED", "WATCHES BROKEN", "CONNECTIONS BROKEN", "LONGEST OUTAGE", "SLOWEST+",
	)}
	for i := range r.Clusters {
		c := &r.Clusters[i]
		t.Add(
			c.keyOf().String(), c, output.Plain(c.Namespace), output.Plain(c.Name), output.Plain(fmt.Sprint(c.Requests)),
			count(c.FailedRequests), count(c.BrokenWatches), count(c.BrokenConnections),
			output.Plain(seconds(c.OutageSeconds)), output.Plain(seconds(c.SlowestSeconds)),
		)
	}
	p.Table(t)
	for i := range r.Clusters {
		printFailures(p, &r.Clusters[i])
	}
	p.Line()
	command := r.Command.result()
	text := ": " + command.Detail
	if r.Command.Seconds > 0 { // it was started
		text += " after " + seconds(r.Command.Seconds)
	}
	p.Line(output.Styled(checkcommand.StyleOf(command.Status), "command"), output.Plain(text))
	for i := range r.Clusters {
		if c := &r.Clusters[i]; c.Down {
			p.Line(
				output.Styled(output.StyleBad, c.keyOf().String()), output.Plain(": does not answer: the last request failed"),
			)
		}
	}
	word := output.Styled(output.StyleGood, "OK")
	if r.Status == check.Broken {
		word = output.Styled(output.StyleBad, "BROKEN")
	}
	p.Line(word, output.Plain(fmt.Sprintf(": %d failures, %d allowed", r.Failed, r.Allowed)))
}

// printFailures writes the first failures of a Cluster, with the hop that was broken.
func printFailures(p *output.Page, c *clusterTraffic) {
	if len(c.Failures) == 0 {
		return
	}
	p.Heading(c.keyOf().String())
	t := &output.Table{Columns: output.Columns("TIME", "WHAT", "LASTED", "HOP", "ERROR", "DETAIL+")}
	for i := range c.Failures[:min(len(c.Failures), maxPrinted)] {
		f := &c.Failures[i]
		t.Add(
			fmt.Sprint(i), f, output.Plain(f.At.Format(time.TimeOnly)), output.Plain(string(f.Kind)),
			output.Plain(seconds(f.Seconds)), output.Plain(output.OrDash(string(f.Hop))), output.Plain(f.Error),
			output.Plain(output.OrDash(f.Detail)),
		)
	}
	p.Table(t)
	if more := c.Failed() - maxPrinted; more > 0 {
		p.Line(output.Plain(fmt.Sprintf("and %d more: -o json has the first 100", more)))
	}
	first := &c.Failures[0]
	if first.Hop == "" {
		p.Line(output.Plain(output.OrDash(first.Detail)))
		return
	}
	printFault(p, "The hop "+string(first.Hop)+" was broken first", &check.Result{
		Status: check.Broken, Detail: first.Detail, Cause: first.Cause, Cure: first.Cure,
	})
}

// count is a number that should be 0.
func count(n int) output.Cell {
	if n == 0 {
		return output.Styled(output.StyleGood, "0")
	}
	return output.Styled(output.StyleBad, fmt.Sprint(n))
}

// seconds returns a time for people; "-": there was none.
func seconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond).String()
}
