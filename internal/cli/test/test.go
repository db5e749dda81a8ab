// Package test has the commands of `fairlead test`: preflight before an installation, connectivity after it, and
// through during a change. Its input is flags and objects; its output is reports for people, for machines and for CI
// systems. pkg/diagnose/preflight, pkg/diagnose/check and pkg/diagnose/traffic do the tests.
package test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/cli/bundle"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/command"
)

// maxClusters bounds the Clusters of one command: each has connections of its own.
const maxClusters = 200

// Command returns the group test. root returns the tree of all commands, for support bundles.
func Command(root func() *cobra.Command) *cobra.Command {
	return command.Group(
		"test", "Test an installation: before it, after it, and during a change", preflightCommand(),
		edgePreflightCommand(), connectivityCommand(root), throughCommand(root),
	)
}

// reportFlags select where the report goes.
type reportFlags struct {
	output.Options
	junit string
}

func (f *reportFlags) addTo(cmd *cobra.Command) {
	f.AddTo(cmd)
	cmd.Flags().StringVar(&f.junit, "junit", "", "also write the results to this file as JUnit XML, for CI systems")
}

// clusterFlags select Clusters, and where a support bundle goes.
type clusterFlags struct {
	management.Flags
	management.ServersFlags
	reportFlags
	tree       func() *cobra.Command
	everywhere bool
	via        string
	bundle     string
}

func (f *clusterFlags) addTo(cmd *cobra.Command) {
	f.Flags.AddTo(cmd.Flags())
	f.ServersFlags.AddTo(cmd)
	f.reportFlags.addTo(cmd)
	set := cmd.Flags()
	set.StringVarP(
		&f.Namespace, "namespace", "n", "", "namespace of the Clusters (default: the namespace of the context)",
	)
	set.BoolVarP(&f.everywhere, "all-namespaces", "A", false, "without CLUSTER: test the Clusters of all namespaces")
	set.StringVar(
		&f.via, "via", "", "host:port to dial instead of the kubeconfig's address, such as a forwarded port of the gateways",
	)
	set.StringVar(&f.bundle, "bundle", "", "if a test fails, write a support bundle to this new file")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
}

// validate returns a usage error for flags that contradict each other.
func (f *clusterFlags) validate(names []string) error {
	if f.everywhere && len(names) > 0 {
		return errors.New("a Cluster is in one namespace: give --namespace instead of --all-namespaces")
	}
	if f.bundle == "" {
		return nil
	}
	if _, err := os.Lstat(f.bundle); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--bundle: %s exists: name a new file", f.bundle)
	}
	return nil
}

// clusters returns the named Clusters, or all that have or request a tunnel.
func (f *clusterFlags) clusters(ctx context.Context, m *management.Client, names []string) ([]client.ObjectKey, error) {
	if !f.everywhere {
		f.Namespace = m.Namespace // of the context, also for the support bundle
	}
	var keys []client.ObjectKey
	for _, name := range names {
		keys = append(keys, client.ObjectKey{Namespace: m.Namespace, Name: name})
	}
	if len(names) == 0 {
		namespace := m.Namespace
		if f.everywhere {
			namespace = ""
		}
		var err error
		if keys, err = m.Candidates(ctx, namespace); err != nil {
			return nil, management.ExplainMissing(err)
		}
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	keys = slices.Compact(keys)
	switch {
	case len(keys) == 0:
		return nil, errors.New("no Cluster in this namespace has a tunnel or has opted in: -A selects all namespaces")
	case len(keys) > maxClusters:
		return nil, fmt.Errorf("%d Clusters are selected, and the limit is %d: name some of them", len(keys), maxClusters)
	}
	return keys, nil
}

// finish prints a report, writes the files, and returns the error that sets the exit code.
func (f *clusterFlags) finish(cmd *cobra.Command, v output.View, s suite, code int) error {
	if err := f.print(cmd, v, s); err != nil {
		return err
	}
	if code == 0 {
		return nil
	}
	if f.bundle != "" {
		if err := bundle.Write(cmd, f.tree, f.Flags, f.ServersFlags, f.bundle); err != nil {
			return fmt.Errorf("writing the support bundle: %w", err)
		}
	}
	return output.Exit(code)
}

// print prints a report, and writes the file of --junit.
func (f *reportFlags) print(cmd *cobra.Command, v output.View, s suite) error {
	if err := f.Print(cmd, v); err != nil {
		return err
	}
	if f.junit == "" {
		return nil
	}
	return s.write(f.junit)
}
