package config

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/envoy"
)

type dumpFlags struct {
	configFlags
	kind string
	name string
	diff bool
}

// dumped is one resource as it was sent and as Envoy runs it.
type dumped struct {
	Type    string          `json:"type"`
	Name    string          `json:"name"`
	Status  string          `json:"status,omitempty"` // of the sent resource
	Version string          `json:"version,omitempty"`
	Message string          `json:"message,omitempty"` // why it was rejected, or why the two differ
	Sent    json.RawMessage `json:"sent,omitempty"`
	Runs    json.RawMessage `json:"runs,omitempty"`    // with --diff
	State   string          `json:"state,omitempty"`   // in Envoy
	Differs *bool           `json:"differs,omitempty"` // with --diff
	Form    string          `json:"form,omitempty"`    // chosen by the agent
	Diff    string          `json:"diff,omitempty"`

	changed json.RawMessage // envoy.Plain of what was sent; nil: the same
}

func configDumpCommand() *cobra.Command {
	var f dumpFlags
	cmd := &cobra.Command{
		Use:   "dump NODE",
		Short: "Print the configuration that was sent to an Envoy, or how it differs from what Envoy runs",
		Long: strings.TrimSpace(`
Print the Envoy clusters, scopes and listeners that the xds-servers publish for a gateway or an edge, as YAML.
With --diff, request from the agent of the node what its Envoy runs, and print the differences; scopes are
not compared.

While a workload cluster has no reverse tunnel, a gateway-agent replaces its Envoy cluster by one that fails
requests at once. The output marks it, and --diff does not count it as a difference. The output contains no
keys: Envoys receive them from their agents only.

Needs: list on Clusters and Tunnels; in the namespace of the installation, list on Pods and create on
pods/portforward.
Changes: nothing.
Exit codes: 0 success, and no difference with --diff; 1 --diff found a difference, or the command failed; 2
the command line is invalid.`),
		Example: "  fairlead config dump gateway-0 --type lds\n  fairlead config dump gateway-0 --name " +
			"c1.prod.tunnels.example.com\n  fairlead config dump edge-abc --diff",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			m, err := f.Open()
			if err != nil {
				return err
			}
			servers, err := f.Connect(cmd.Context(), m)
			if err != nil {
				return err
			}
			defer servers.Close()
			all, err := f.read(cmd.Context(), servers, args[0])
			if err != nil {
				return err
			}
			if err := f.Print(cmd, dumpView(args[0], all, f.diff)); err != nil {
				return err
			}
			if slices.ContainsFunc(all, func(d dumped) bool { return d.Differs != nil && *d.Differs }) {
				return output.Broken()
			}
			return nil
		},
	}
	f.addTo(cmd)
	f.Options.AddTo(cmd)
	cmd.Flags().StringVar(
		&f.kind, "type", "", "cds (Envoy clusters), srds (scopes of apiservers) or lds (listeners) (default: all)",
	)
	cmd.Flags().StringVar(&f.name, "name", "", "name of one resource")
	cmd.Flags().BoolVar(&f.diff, "diff", false, "print how the sent configuration differs from what Envoy runs")
	_ = cmd.RegisterFlagCompletionFunc(
		"type", cobra.FixedCompletions([]string{"cds", "srds", "lds"}, cobra.ShellCompDirectiveNoFileComp),
	)
	return cmd
}

func (f *dumpFlags) validate() error {
	switch typeURL := typeOf(f.kind); {
	case f.kind != "" && typeURL == "":
		return output.UsageError(
			"--type: %q is invalid: must be cds (Envoy clusters), srds (scopes) or lds (listeners)", f.kind,
		)
	case f.diff && typeURL == resourcev3.ScopedRouteType:
		return output.UsageError("--diff: scopes are not compared, because an Envoy dumps only all of them together")
	}
	return f.Validate()
}

func (f *dumpFlags) wanted(typeURL, name string) bool {
	if f.diff && typeURL == resourcev3.ScopedRouteType {
		return false
	}
	return (f.kind == "" || typeURL == typeOf(f.kind)) && (f.name == "" || name == f.name)
}

// read returns the resources that were sent, and with --diff also what Envoy runs.
func (f *dumpFlags) read(ctx context.Context, servers *collect.Servers, name string) ([]dumped, error) {
	node, err := f.node(ctx, servers, name)
	if err != nil {
		return nil, err
	}
	all := map[[2]string]*dumped{}
	for i := range node.Resources {
		r := &node.Resources[i]
		if !f.wanted(r.TypeURL, r.Name) {
			continue
		}
		sent, err := asJSON(r.Config)
		if err != nil {
			return nil, err
		}
		d := &dumped{
			Type:    typeNames[r.TypeURL],
			Name:    r.Name,
			Status:  string(r.Status),
			Version: r.Version,
			Message: r.Refusal,
			Sent:    sent,
		}
		if plain := envoy.Plain(r.Config); plain != r.Config {
			if d.changed, err = asJSON(plain); err != nil {
				return nil, err
			}
		}
		all[[2]string{r.TypeURL, r.Name}] = d
	}
	if f.diff {
		var only []string
		if f.name != "" {
			only = []string{f.name}
		}
		running, err := servers.Dump(ctx, name, only...)
		if err != nil {
			return nil, err
		}
		if err := f.compare(all, running.Running); err != nil {
			return nil, err
		}
	}
	var list []dumped
	for _, d := range all {
		list = append(list, *d)
	}
	slices.SortFunc(
		list, func(a, b dumped) int { return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name)) },
	)
	if len(list) == 0 && f.name != "" {
		return nil, fmt.Errorf("%s has no resource %s: `fairlead config dump %s` prints all", name, f.name, name)
	}
	return list, nil
}

// node returns the newest stream of a node. With --name it requests only that resource: a gateway may have 10,000
// others.
func (f *dumpFlags) node(ctx context.Context, servers *collect.Servers, name string) (*collect.Node, error) {
	if f.name != "" {
		nodes, _ := servers.Resources(ctx, f.name) // servers that did not answer are named below
		nodes = slices.DeleteFunc(nodes, func(n collect.Node) bool { return n.Name != name })
		if len(nodes) > 0 {
			return newest(nodes), nil
		}
	}
	return findNode(ctx, servers, name)
}

func newest(nodes []collect.Node) *collect.Node {
	n := slices.MaxFunc(nodes, func(a, b collect.Node) int { return a.Connected.Compare(b.Connected) })
	return &n
}

// findNode returns the newest stream of a node.
func findNode(ctx context.Context, servers *collect.Servers, name string) (*collect.Node, error) {
	nodes, err := servers.Nodes(ctx, name)
	if len(nodes) > 0 {
		return newest(nodes), nil
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf(
		"%s is not connected to any xds-server: `fairlead config sync` lists the gateways and edges that are",
		name,
	)
}

// compare adds what Envoy runs, and the differences.
func (f *dumpFlags) compare(all map[[2]string]*dumped, running []collect.Running) error {
	for i := range running {
		r := &running[i]
		if !f.wanted(r.TypeURL, r.Name) || r.State == "draining" {
			continue
		}
		key := [2]string{r.TypeURL, r.Name}
		d := all[key]
		if d == nil {
			d = &dumped{Type: typeNames[r.TypeURL], Name: r.Name}
			all[key] = d
		}
		if d.State == "active" && r.State != "active" {
			d.State += ", " + r.State // only active resources run
			continue
		}
		runs, err := fromEnvoy(r.TypeURL, r.Config)
		if err != nil {
			return err
		}
		d.Runs, d.State, d.Form = runs, r.State, r.Form
		d.Message = cmp.Or(d.Message, r.Refusal)
	}
	for _, d := range all {
		d.judge()
	}
	return nil
}

// judge sets whether Envoy runs what was sent.
func (d *dumped) judge() {
	// Agents of versions before change nothing.
	differs := string(d.Sent) != string(d.Runs) && (d.changed == nil || string(d.changed) != string(d.Runs))
	if differs && d.Form != "" && d.Sent != nil { // the agent chose another form
		differs = false
		d.Message = cmp.Or(d.Message, fmt.Sprintf("its agent runs it in the form %q", d.Form))
	}
	if d.Differs = &differs; !differs {
		return
	}
	switch {
	case d.Runs == nil:
		d.Message = cmp.Or(d.Message, "Envoy does not have it")
	case d.Sent == nil:
		d.Message = cmp.Or(d.Message, "Envoy still has it, but it is no longer published")
	}
	d.Diff, _ = difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: withEnds(
			asLines(d.Sent),
		), B: withEnds(asLines(d.Runs)), FromFile: "sent/" + d.Type + "/" + d.Name, ToFile: "runs/" + d.Type + "/" + d.Name,
		Context: 3,
	}) // a buffer accepts everything
}

func withEnds(lines []string) []string {
	for i := range lines {
		lines[i] += "\n"
	}
	return lines
}

func dumpView(node string, all []dumped, diff bool) output.View {
	return output.View{
		Data: map[string]any{"node": node, "at": time.Now().UTC(), "resources": all},
		Page: func(p *output.Page) {
			same := 0
			for i := range all {
				d := &all[i]
				if !diff {
					p.Line(output.Styled(output.StyleBold, "# "+kindName(d.Type)+" "+d.Name+", "+d.Status))
					if d.Message != "" {
						p.Line(output.Styled(output.StyleBad, "# "+d.Message))
					}
					for _, l := range asLines(d.Sent) {
						p.Line(output.Plain(l))
					}
					p.Line(output.Plain("---"))
					continue
				}
				if d.Differs == nil || !*d.Differs {
					same++
					if d.Message != "" {
						p.Line(output.Styled(output.StyleFaint, kindName(d.Type)+" "+d.Name+": "+d.Message))
					}
					continue
				}
				p.Line(output.Styled(output.StyleWarning, kindName(d.Type)+" "+d.Name+": "+cmp.Or(d.Message, "differs")))
				for l := range strings.SplitSeq(strings.TrimSuffix(d.Diff, "\n"), "\n") {
					p.Line(output.Styled(diffStyle(l), l))
				}
			}
			if diff {
				p.Line(output.Plain(fmt.Sprintf("%d of %d resources run as published", same, len(all))))
			}
		},
	}
}

func diffStyle(l string) output.Style {
	switch {
	case strings.HasPrefix(l, "+++"), strings.HasPrefix(l, "---"), strings.HasPrefix(l, "@@"):
		return output.StyleFaint
	case strings.HasPrefix(l, "+"):
		return output.StyleGood
	case strings.HasPrefix(l, "-"):
		return output.StyleBad
	}
	return output.StylePlain
}

// kindName returns the usual name of a type.
func kindName(short string) string {
	switch short {
	case typeNames[resourcev3.ListenerType]:
		return "listener"
	case typeNames[resourcev3.ScopedRouteType]:
		return "scope"
	}
	return "Envoy cluster"
}
