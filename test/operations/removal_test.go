package operations

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/world"
)

const removing = "Removing Fairlead"

// removed removes Fairlead as documented.
func (o *operations) removed(t *testing.T) {
	if len(o.traces(t)) < 100 {
		t.Fatal("before the removal nothing is found either")
	}
	that(t, "the documented commands remove Fairlead (the test stops the Pods)", func(t *testing.T) {
		o.run(t, block(t, removing, 0))
	})
	that(t, "all kubeconfig Secrets are restored as their provider wrote them", func(t *testing.T) {
		for _, c := range o.clusters {
			o.within(t, func(ctx context.Context) error { return o.direct(ctx, c) })
			secret, err := c.Secret(t.Context(), "-kubeconfig")
			must(t, err)
			if len(secret.Data) != 1 || len(secret.Annotations) > 0 {
				t.Errorf("the Secret of %s has more: %d keys, annotations %v", c, len(secret.Data), secret.Annotations)
			}
		}
	})
	that(t, "no object of Fairlead remains in the management cluster", func(t *testing.T) {
		for _, line := range o.traces(t) {
			t.Error(line)
		}
	})
	for _, e := range o.edges {
		world.StopEdge(t, e.Agent)
	}
}

// traces returns all lines of all objects that name Fairlead. Events expire after an hour, and kube-controller-manager
// removes CertificateSigningRequests within that time.
func (o *operations) traces(t *testing.T) (all []string) {
	t.Helper()
	kinds := slices.DeleteFunc(
		strings.Fields(o.run(t, "kubectl api-resources --verbs=list -o name")),
		func(kind string) bool {
			return strings.HasPrefix(kind, "events") || strings.HasPrefix(kind, "certificatesigningrequests")
		},
	)
	for line := range strings.Lines(o.run(t, "kubectl get --all-namespaces --ignore-not-found -o "+
		"yaml "+strings.Join(kinds, ","))) {
		if strings.Contains(line, "fairlead") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}
