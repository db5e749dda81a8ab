package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
)

const (
	// defaultWait is longer than the start of an edge and the first probe of its apiserver.
	defaultWait = 5 * time.Minute
	// rereadInterval is how often the objects are read again without a change, in case a watch stalls.
	rereadInterval = 15 * time.Second
	// maxMissing bounds the Clusters that the error at the timeout names.
	maxMissing = 20
)

// waitable are the conditions of Tunnels for which a user can wait.
var waitable = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionAccepted, v1alpha1.ConditionEnrolled, v1alpha1.ConditionTunnelReady,
	v1alpha1.ConditionAPIServerReachable, v1alpha1.ConditionKubeconfigReady, v1alpha1.ConditionKubeconfigSwitched,
	v1alpha1.ConditionHostnameResolves, v1alpha1.ConditionCopiesReady, v1alpha1.ConditionEgressReady,
}

// validateWait validates --wait and --timeout, and gives the condition its usual case.
func (f *statusFlags) validateWait(names []string) error {
	if f.wait == "" {
		if len(names) > 1 {
			return output.UsageError("several Clusters need --wait")
		}
		return nil
	}
	at := slices.IndexFunc(waitable, func(c string) bool { return strings.EqualFold(c, f.wait) })
	switch {
	case at < 0:
		return output.UsageError("--wait: %q is invalid: must be one of %s", f.wait, strings.Join(waitable, ", "))
	case f.timeout <= 0:
		return output.UsageError("--timeout must be more than 0")
	}
	f.wait = waitable[at]
	return nil
}

// waitFor waits until a condition of every Cluster is true, and prints the status then. At the timeout it prints the
// status too, and returns an error that names what is missing.
func (l *reader) waitFor(cmd *cobra.Command, names []string, changes output.Watcher) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), l.flags.timeout)
	defer cancel()
	news, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- output.Both(changes, output.Every(rereadInterval))(ctx, func() {
			select {
			case news <- struct{}{}:
			default:
			}
		})
	}()
	defer l.live.progress.Done()
	for {
		in, err := l.objects(ctx)
		if err != nil {
			return err
		}
		missing := unmet(in, l.namespace, names, l.flags.wait)
		if len(missing) == 0 {
			l.live.progress.Done()
			return l.flags.Show(cmd, l.read, nil)
		}
		l.live.progress.Update("waiting: %s …", missing[0])
		select {
		case <-ctx.Done():
			return l.late(cmd, missing)
		case err := <-ended:
			if ctx.Err() == nil {
				return errors.Join(errors.New("the watch has ended"), err)
			}
			return l.late(cmd, missing)
		case <-news:
		}
	}
}

// late returns the error at the timeout, or when the user has stopped the command.
func (l *reader) late(cmd *cobra.Command, missing []string) error {
	if err := cmd.Context().Err(); err != nil {
		return fmt.Errorf("waiting for the condition %s: %w", l.flags.wait, err)
	}
	l.live.progress.Done()
	more := ""
	if len(missing) > maxMissing {
		more = fmt.Sprintf("\n  and %d more", len(missing)-maxMissing)
		missing = missing[:maxMissing]
	}
	err := fmt.Errorf(
		"the condition %s is not met after %s; missing:\n  %s%s", l.flags.wait, l.flags.timeout,
		strings.Join(missing, "\n  "), more,
	)
	if l.name != "" { // the page of a Cluster that may not exist
		return err
	}
	return errors.Join(l.flags.Show(cmd, l.read, nil), err)
}

// unmet returns a line for each Cluster whose Tunnel does not have the condition: of all that have or request a tunnel,
// or of the named ones.
func unmet(in summary.Input, namespace string, names []string, condition string) (missing []string) {
	found := map[string]bool{}
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	for i := range in.Tunnels {
		t := &in.Tunnels[i]
		if !t.OfCluster() || !wanted(t.Name) {
			continue
		}
		key := t.Namespace + "/" + t.Name
		found[key] = true
		if why := lacks(t, condition); why != "" {
			missing = append(missing, key+": "+why)
		}
	}
	for i := range in.Clusters {
		c := &in.Clusters[i]
		key := c.Namespace + "/" + c.Name
		if found[key] || !wanted(c.Name) || c.Labels[v1alpha1.TunnelLabel] != v1alpha1.TunnelEnabled {
			continue
		}
		found[key] = true
		missing = append(missing, key+": the Cluster has opted in, and has no Tunnel yet: check that the controller runs")
	}
	for _, name := range names {
		if key := namespace + "/" + name; !found[key] {
			missing = append(missing, fmt.Sprintf(
				"%s: no Cluster with a Tunnel or with the label %s=%s has this name", key, v1alpha1.TunnelLabel,
				v1alpha1.TunnelEnabled,
			))
		}
	}
	if len(names) == 0 && len(found) == 0 {
		missing = append(missing, "no Cluster has a tunnel or has opted in")
	}
	slices.Sort(missing)
	return missing
}

// lacks returns why a Tunnel does not have a condition for its current specification; empty: it has it.
func lacks(t *v1alpha1.Tunnel, condition string) string {
	c := meta.FindStatusCondition(t.Status.Conditions, condition)
	switch {
	case c == nil:
		return "the condition " + condition + " is not set yet"
	case c.ObservedGeneration != t.Generation:
		return "the controller has not processed the last change of the Tunnel"
	case c.Status != metav1.ConditionTrue:
		return fmt.Sprintf("%s is %s (%s): %s", condition, c.Status, c.Reason, c.Message)
	}
	return ""
}
