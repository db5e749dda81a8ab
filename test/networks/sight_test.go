package networks

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/lab"
)

// row is a row of fairlead status.
type row struct {
	Cluster, Network, Health, Mode string

	CIDRs     []string
	Edges     []struct{ Node, State string }
	Connected int `json:"edgesConnected"`
	Networks  []row
	Egress    *row
}

// shows proves what operators see of networks.
func (f *fleet) shows(t *testing.T) {
	that(t, "fairlead network list shows which networks are ready", func(t *testing.T) {
		out, err := f.Exec(t.Context(), "network", "list", "-A")
		if err != nil || strings.Count(out, "True") != 3 {
			t.Errorf("%v:\n%s", err, out)
		}
	})
	that(t, "fairlead status shows the networks and the apiservers below each Cluster", func(t *testing.T) {
		eventually(t, f.statusShows)
		out, err := f.Exec(t.Context(), "status", "-A", "--live=false")
		if err != nil || !strings.Contains(out, "3 of 3 networks ok") || strings.Contains(out, ".network") {
			t.Errorf("%v:\n%s", err, out)
		}
	})
	that(t, "fairlead edge list shows network and role of each edge, and all are connected", func(t *testing.T) {
		out, err := f.Exec(t.Context(), "edge", "list", "-A", "-o", "json")
		must(t, err)
		var list struct {
			Edges []struct{ Cluster, Network, Role, State string }
		}
		must(t, json.Unmarshal([]byte(out), &list))
		count := map[string]int{}
		for _, e := range list.Edges {
			count[e.Cluster+"/"+e.Network+" "+e.Role+" "+e.State]++
		}
		want := map[string]int{
			"shop/site1 edge connected": 1, "shop/site2 edge connected": 1, "bank/vault edge connected": 1,
			"shop/ egress connected": 1, "bank/ egress connected": 1,
		}
		if fmt.Sprint(count) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", count, want)
		}
	})
	that(t, "metrics count networks, their edges and connected apiservers", func(t *testing.T) {
		for series, want := range map[string]float64{
			`fairlead_controller_networks`:                                                                        3,
			`fairlead_controller_tunnels{kind="network"}`:                                                         3,
			`fairlead_controller_tunnels{kind="egress"}`:                                                          2,
			`fairlead_controller_edges{kind="network",state="connected"}`:                                         3,
			`fairlead_controller_edges{kind="egress",state="connected"}`:                                          2,
			`fairlead_controller_network_conditions{condition="Ready",reason="Ready",status="True"}`:              3,
			`fairlead_controller_network_conditions{condition="EgressReady",reason="Connected",status="True"}`:    3,
			`fairlead_controller_tunnel_conditions{condition="Ready",kind="egress",reason="Ready",status="True"}`: 2,
		} {
			eventually(t, f.counts("controller", series, func(got float64) bool { return got == want }))
		}
	})
}

// statusShows returns nil if fairlead status has each Cluster with its networks and its apiserver, all healthy.
func (f *fleet) statusShows(ctx context.Context) error {
	out, err := f.Exec(ctx, "status", "-A", "-o", "json", "--live=false")
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	var view struct{ Rows []row }
	if err := json.Unmarshal([]byte(out), &view); err != nil {
		return err
	}
	var got []string
	for _, r := range view.Rows {
		for _, n := range r.Networks {
			got = append(got, fmt.Sprint(r.Cluster, " ", n.Network, n.CIDRs, n.Connected, " ", n.Health))
		}
		if r.Egress != nil {
			got = append(got, fmt.Sprint(r.Cluster, " ", r.Egress.Mode, r.Egress.Connected, " ", r.Egress.Health))
		}
	}
	want := "bank vault[10.1.0.0/16] 1 ok,bank egress1 ok,shop site1[10.1.0.0/16] 1 ok,shop site2[10.2.0.0/16] 1 ok," +
		"shop egress1 ok"
	if all := strings.Join(got, ","); all != want {
		return fmt.Errorf("got %s, want %s", all, want)
	}
	return nil
}

// counts returns a condition that is nil once the sum of a series, over all programs of a job, is as expected.
func (f *fleet) counts(job, series string, is func(float64) bool) func(context.Context) error {
	return func(ctx context.Context) error {
		sum, found := 0.0, false
		for _, target := range f.Targets() {
			if target.Job != job {
				continue
			}
			value, ok, err := scrape(ctx, target, series)
			if err != nil {
				return err
			}
			sum, found = sum+value, found || ok
		}
		if !found || !is(sum) {
			return fmt.Errorf("%s is %g (served: %t)", series, sum, found)
		}
		return nil
	}
}

// scrape returns the value of a series of a program; false: there is no such series.
func scrape(ctx context.Context, target lab.Target, series string) (float64, bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target.Address+"/metrics", http.NoBody)
	if err != nil {
		return 0, false, err
	}
	client := &http.Transport{DialContext: target.Namespace.DialContext, DisableKeepAlives: true}
	answer, err := client.RoundTrip(request)
	if err != nil {
		return 0, false, err
	}
	defer answer.Body.Close()
	in := bufio.NewScanner(answer.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if text, ok := strings.CutPrefix(in.Text(), series+" "); ok {
			value, err := strconv.ParseFloat(strings.Fields(text)[0], 64)
			return value, true, err
		}
	}
	return 0, false, in.Err()
}
