package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// completionTime bounds a completion: a user is waiting at the keyboard.
	completionTime = 3 * time.Second
	// maxCompletions is more than a user reads.
	maxCompletions = 500
)

// completer returns the candidates for an argument or a flag.
type completer func(ctx context.Context, m *management.Client) ([]string, error)

// addCompletions adds completions for the arguments and flags of every command of a tree, chosen by their names.
func addCompletions(cmd *cobra.Command) {
	for word, look := range map[string]completer{
		"CLUSTER": tunnelNames, "NETWORK": networkNames, "NODE": nodeNames, "HOSTNAME": hostnames,
	} {
		if !strings.Contains(cmd.Use, word) || cmd.ValidArgsFunction != nil {
			continue
		}
		if word == "CLUSTER" && (cmd.Name() == "join" || cmd.Name() == "egress" || cmd.Name() == "status") {
			look = clusterNames
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 && !strings.Contains(cmd.Use, word+"...") {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return complete(cmd, begin, look)
		}
	}
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for flag, look := range map[string]completer{
		"namespace": namespaces, "installation": namespaces,
		"cluster": tunnelNames,
	} {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(
				flag,
				func(cmd *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
					return complete(cmd, begin, look)
				},
			)
		}
	}
	if cmd.Flags().Lookup("context") != nil {
		_ = cmd.RegisterFlagCompletionFunc("context", completeContexts)
	}
	for _, sub := range cmd.Commands() {
		addCompletions(sub)
	}
}

// flagsFor returns the flags with which a command reaches its management cluster.
func flagsFor(cmd *cobra.Command) management.Flags {
	value := func(name string) string {
		if f := cmd.Flags().Lookup(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	return management.Flags{Kubeconfig: value("kubeconfig"), Context: value("context"), Namespace: value("namespace")}
}

// complete returns the candidates that begin with begin, or none if the management cluster does not answer.
func complete(cmd *cobra.Command, begin string, look completer) ([]string, cobra.ShellCompDirective) {
	f := flagsFor(cmd)
	m, err := f.Open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completionTime)
	defer cancel()
	all, err := look(ctx, m)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return beginning(all, begin), cobra.ShellCompDirectiveNoFileComp
}

func beginning(all []string, begin string) []string {
	all = slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, begin) })
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxCompletions)]
}

func completeContexts(cmd *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
	f := flagsFor(cmd)
	raw, err := f.Loader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return beginning(slices.Collect(maps.Keys(raw.Contexts)), begin), cobra.ShellCompDirectiveNoFileComp
}

// namesOf lists the names of the objects of a kind in the selected namespace.
func namesOf(
	ctx context.Context, m *management.Client, list *metav1.PartialObjectMetadataList, options ...client.ListOption,
) (all []string, err error) {
	err = m.List(ctx, list, options...)
	for i := range list.Items {
		all = append(all, list.Items[i].Name)
	}
	return all, err
}

func tunnelNames(ctx context.Context, m *management.Client) ([]string, error) {
	return namesOf(
		ctx, m, management.MetadataList(v1alpha1.GroupVersion.WithKind("Tunnel")), client.InNamespace(m.Namespace),
	)
}

func networkNames(ctx context.Context, m *management.Client) ([]string, error) {
	return namesOf(
		ctx, m, management.MetadataList(v1alpha1.GroupVersion.WithKind("RemoteNetwork")), client.InNamespace(m.Namespace),
	)
}

func clusterNames(ctx context.Context, m *management.Client) ([]string, error) {
	return namesOf(
		ctx, m, management.MetadataList(clusterv1.GroupVersion.WithKind("Cluster")), client.InNamespace(m.Namespace),
	)
}

func namespaces(ctx context.Context, m *management.Client) ([]string, error) {
	return namesOf(ctx, m, management.MetadataList(corev1.SchemeGroupVersion.WithKind("Namespace")))
}

// nodeNames lists the nodes of recorded edges, and of the gateways to which they have tunnels.
func nodeNames(ctx context.Context, m *management.Client) (all []string, err error) {
	var tunnels v1alpha1.TunnelList
	if err := m.List(ctx, &tunnels); err != nil {
		return nil, err
	}
	for i := range tunnels.Items {
		for _, e := range tunnels.Items[i].Status.Edges {
			if node, ok := model.ParseNodeID(e.NodeID); ok {
				all = append(all, node)
			}
			for _, g := range e.Gateways {
				all = append(all, g.Name)
			}
		}
	}
	return all, nil
}

func hostnames(ctx context.Context, m *management.Client) (all []string, err error) {
	var tunnels v1alpha1.TunnelList
	if err := m.List(ctx, &tunnels); err != nil {
		return nil, err
	}
	for i := range tunnels.Items {
		all = append(all, tunnels.Items[i].Status.Names...)
	}
	return all, nil
}
