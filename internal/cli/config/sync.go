package config

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// syncInterval is the time between two queries of --watch.
const syncInterval = 2 * time.Second

// answerTime is how long a sent resource may be unanswered and still count as synced. An Envoy answers in milliseconds.
const answerTime = 3 * time.Second

// States of nodes that no server reports as connected.
const (
	// disconnected is a node whose agent is connected to no server.
	disconnected = "DISCONNECTED"
	// unknownSync is a node that may be connected to a server that did not answer.
	unknownSync = "UNKNOWN"
)

// syncRow is the state of one type of a node, or of a node that is not connected.
type syncRow struct {
	Node    string     `json:"node"`
	Role    string     `json:"role"`
	Cluster string     `json:"cluster,omitempty"` // namespace/name
	Type    string     `json:"type,omitempty"`
	Status  string     `json:"status"`
	Synced  int        `json:"synced"`
	Total   int        `json:"total"`
	Since   *time.Time `json:"since,omitempty"` // of resources that are not synced
	Message string     `json:"message,omitempty"`
	Server  string     `json:"server,omitempty"`
	Profile string     `json:"profile,omitempty"` // that it is served, by its short name
	Version string     `json:"version,omitempty"` // of the agent
	Names   []string   `json:"names,omitempty"`   // of resources that are not synced
}

func configSyncCommand() *cobra.Command {
	var f configFlags
	cmd := &cobra.Command{
		Use:   "sync [NODE]",
		Short: "Show which Envoys run the published configuration",
		Long: strings.TrimSpace(`
Show for each gateway and each edge whether its Envoy runs the configuration that the xds-servers publish for
it. The lines above the table show the state of the current rollout: see docs/rollouts.md.

  SYNCED        Envoy accepted the published configuration
  STALE         Envoy has not answered yet, or its agent gets no configuration; the last accepted version runs
  NACK          Envoy rejected a resource; the last accepted version runs, and the message is Envoy's
  DISCONNECTED  its agent is connected to no xds-server: Envoy, if it runs, runs the last accepted version
  UNKNOWN       an xds-server did not answer, and the node may be connected to it

An edge that is DISCONNECTED does not fail the command: the xds-servers list the edge of a replaced Pod for an
hour. It gets the published configuration if it connects. "status" and "check" report missing edges.

Needs: list on Clusters and Tunnels; in the namespace of the installation, get on ConfigMaps, list on Pods and
create on pods/portforward.
Changes: nothing.
Exit codes: 0 all gateways and all connected edges are SYNCED, and no rollout has stopped; 1 a gateway or a
connected edge is not SYNCED, a rollout has stopped, an xds-server did not answer, or the command failed; 2 the
command line is invalid.`),
		Example: "  fairlead config sync\n  fairlead config sync gateway-0\n  fairlead config sync --watch -o json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.Open()
			if err != nil {
				return err
			}
			servers, err := f.Connect(cmd.Context(), m)
			if err != nil {
				return err
			}
			defer servers.Close()
			var last syncSnapshot
			err = f.Show(cmd, func(ctx context.Context) (_ output.View, err error) {
				last, err = readSync(ctx, servers, m, f.Installation, args)
				return syncView(last, time.Now()), err
			}, output.Every(syncInterval))
			if err == nil && !last.applied() {
				return output.Broken()
			}
			return err
		},
	}
	f.addTo(cmd)
	f.AddWatchTo(cmd)
	return cmd
}

// syncSnapshot is the state of all nodes at one moment.
type syncSnapshot struct {
	rows    []syncRow
	rollout *rolloutState // nil: none is known
	failed  []error       // of servers that did not answer, and of the record of rollouts
}

// applied reports whether all nodes run the configuration that is published for them, or get it when they connect. It
// is false if that is not known.
func (l syncSnapshot) applied() bool {
	if len(l.failed) > 0 {
		return false
	}
	if l.rollout != nil && l.rollout.Phase == rollout.Phases[rollout.PhaseStopped] {
		return false
	}
	return !slices.ContainsFunc(l.rows, syncRow.failed)
}

// failed reports whether the command exits with 1 because of a node. Edges may end at any time, and xds-servers
// list one that ended for report.DefaultTimes.Keep. A gateway of the installation is expected to be connected.
func (row syncRow) failed() bool {
	switch row.Status {
	case string(collect.Synced):
		return false
	case disconnected:
		return row.Role != string(model.RoleEdge)
	}
	return true
}

// readSync queries all servers.
func readSync(
	ctx context.Context, servers *collect.Servers, m *management.Client, namespace string, only []string,
) (syncSnapshot, error) {
	fleet, err := servers.Fleet(ctx)
	if err != nil {
		return syncSnapshot{}, err
	}
	nodes, err := servers.Nodes(ctx, "")
	failed := fleet.Silent()
	if err != nil && len(failed) == 0 { // a server that did not answer before either is reported once
		failed = append(failed, err)
	}
	clusters := map[string]string{}
	var tunnels v1alpha1.TunnelList
	if err := m.List(ctx, &tunnels); err == nil { // without this permission the names of Clusters are not shown
		for i := range tunnels.Items {
			clusters[tunnels.Items[i].HeldID()] = tunnels.Items[i].Namespace + "/" + tunnels.Items[i].Name
		}
	}
	rows := syncRows(fleet, nodes, len(failed) > 0, clusters, time.Now())
	if len(only) == 1 {
		rows = slices.DeleteFunc(rows, func(r syncRow) bool { return r.Node != only[0] && r.Cluster != only[0] })
		if len(rows) == 0 {
			return syncSnapshot{}, fmt.Errorf(
				"no gateway, edge or Cluster %s is known to the xds-servers: `fairlead config sync` lists all",
				only[0],
			)
		}
	}
	record, err := readRollout(ctx, m, namespace)
	if err != nil {
		failed = append(failed, err)
	}
	return syncSnapshot{rows, stateOf(record, nodes), failed}, nil
}

// streamTime is how long a node that reports may be without a stream of configuration, which it opens at the same time.
const streamTime = 10 * time.Second

// syncRows returns the rows of all nodes, nodes with problems first.
func syncRows(
	fleet collect.Fleet, nodes []collect.Node, doubt bool, clusters map[string]string, now time.Time,
) []syncRow {
	var rows []syncRow
	there := map[string]bool{}
	for i := range nodes {
		there[nodes[i].Name] = true
		rows = append(rows, nodeRows(&nodes[i], clusters, now)...)
	}
	away := func(name string, role model.Role, id, server string, connected bool, since time.Time) {
		if there[name] {
			return
		}
		row := syncRow{Node: name, Role: string(role), Cluster: clusters[id], Server: server}
		row.Status, row.Message = unreported(doubt)
		switch {
		case !connected:
			row.Since = pointer(since)
		case doubt:
		case now.Sub(since) > streamTime:
			row.Status, row.Message, row.Since = string(collect.Stale), "it reports, but gets no configuration", pointer(since)
		default:
			row.Message = "its agent has connected, and gets no configuration yet"
		}
		rows = append(rows, row)
	}
	for _, g := range fleet.Gateways {
		if g.Installed {
			away(g.Name, model.RoleGateway, "", g.Server, g.Connected, g.Since)
		}
	}
	for _, e := range fleet.Edges {
		away(e.Node, model.RoleEdge, e.ID, e.Server, e.Connected, e.Since)
	}
	slices.SortStableFunc(rows, func(a, b syncRow) int {
		return cmp.Or(
			cmp.Compare(syncRank(a.Status), syncRank(b.Status)), -strings.Compare(a.Role, b.Role),
			strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Node, b.Node), strings.Compare(a.Type, b.Type),
		)
	})
	return rows
}

// unreported returns the state of a node that no server reports as connected. With doubt, a server has not answered.
func unreported(doubt bool) (status, message string) {
	if doubt {
		return unknownSync, "it is connected to no xds-server that answered"
	}
	return disconnected, "its agent is not connected: Envoy, if it runs, goes on with what it had"
}

// syncOrder is the order of states in the table.
var syncOrder = []string{
	string(collect.Rejected), string(collect.Stale), unknownSync, disconnected, string(collect.Synced),
}

func syncRank(status string) int {
	return slices.Index(syncOrder, status)
}

func pointer(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// nodeRows returns the rows of one node, one for each type.
func nodeRows(node *collect.Node, clusters map[string]string, now time.Time) []syncRow {
	byType := map[string]*syncRow{}
	for i := range node.Resources {
		r := &node.Resources[i]
		row := byType[r.TypeURL]
		if row == nil {
			row = &syncRow{
				Node: node.Name, Role: string(node.Role), Cluster: clusters[node.ID], Type: cmp.Or(typeNames[r.TypeURL],
					r.TypeURL), Status: string(collect.Synced),
				Server: node.Server, Version: node.Version, Profile: node.Profile,
			}
			byType[r.TypeURL] = row
		}
		row.add(r, now)
	}
	if len(byType) == 0 { // an edge whose Cluster does not exist yet
		return []syncRow{
			{
				Node:    node.Name,
				Role:    string(node.Role),
				Cluster: clusters[node.ID],
				Status:  string(collect.Synced),
				Server:  node.Server,
				Version: node.Version,
				Profile: node.Profile,
				Message: "no configuration is published for it yet",
			},
		}
	}
	var rows []syncRow
	for _, row := range byType {
		rows = append(rows, *row)
	}
	return rows
}

// maxListed is how many names of resources a row shows.
const maxListed = 20

func (row *syncRow) add(r *collect.Resource, now time.Time) {
	row.Total++
	if r.Status == collect.Synced || r.Status == collect.Stale && !r.Since.IsZero() && now.Sub(r.Since) < answerTime {
		row.Synced++
		return
	}
	if len(row.Names) < maxListed {
		row.Names = append(row.Names, r.Name)
	}
	message := r.Name + ": " + r.Refusal
	if r.Status == collect.Stale {
		message = r.Name + ": sent, not answered"
	}
	// A rejected resource outranks one that waits. Of equal states, the longest counts.
	worse := syncRank(string(r.Status)) < syncRank(row.Status)
	earlier := string(r.Status) == row.Status && !r.Since.IsZero() && (row.Since == nil || r.Since.Before(*row.Since))
	if worse || earlier {
		row.Status, row.Message, row.Since = string(r.Status), message, pointer(r.Since)
	}
}

// syncStyles are the styles of states.
var syncStyles = map[string]output.Style{
	string(collect.Synced):   output.StyleGood,
	string(collect.Stale):    output.StyleWarning,
	string(collect.Rejected): output.StyleBad,
	disconnected:             output.StyleWarning,
	unknownSync:              output.StyleFaint,
}

func syncView(snapshot syncSnapshot, now time.Time) output.View {
	rows, failed := snapshot.rows, snapshot.failed
	t := &output.Table{
		Columns: output.Columns(
			"NODE", "ROLE", "CLUSTER", "TYPE", "STATUS", "RESOURCES", "PROFILE", "SINCE~", "MESSAGE", "SERVER+", "VERSION+",
		),
	}
	counts := map[string]int{}
	for _, r := range rows {
		counts[r.Status]++
		resources := "-"
		if r.Type != "" {
			resources = strconv.Itoa(r.Synced) + "/" + strconv.Itoa(r.Total)
		}
		since := "-"
		if r.Since != nil {
			since = output.Age(*r.Since, now)
		}
		t.Add(
			r.Node+" "+r.Type,
			r,
			output.Plain(r.Node),
			output.Plain(r.Role),
			output.Plain(output.OrDash(r.Cluster)),
			output.Plain(output.OrDash(r.Type)),
			output.Styled(syncStyles[r.Status], r.Status),
			output.Plain(resources),
			output.Plain(
				output.OrDash(r.Profile),
			),
			output.Plain(since),
			output.Plain(output.OrDash(cutLine(r.Message, 160))),
			output.Plain(output.OrDash(r.Server)),
			output.Plain(output.OrDash(short(r.Version))),
		)
	}
	v := output.View{
		Data:  map[string]any{"nodes": rows, "rollout": snapshot.rollout, "errors": texts(failed)},
		Table: t,
		Empty: "no gateway and no edge is known to the xds-servers",
	}
	if snapshot.rollout != nil {
		v.Summary = append(v.Summary, snapshot.rollout.line(now))
	}
	for _, err := range failed {
		v.Summary = append(v.Summary, output.Line{output.Styled(output.StyleWarning, err.Error())})
	}
	return v
}

func texts(errs []error) []string {
	all := []string{}
	for _, err := range errs {
		all = append(all, err.Error())
	}
	return all
}
