package kubeconfigs

import (
	"context"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab"
)

// webhookName is the name of Fairlead's webhook configuration.
const webhookName = "fairlead-kubeconfigs"

// withoutWebhook removes the webhook while f runs, as if no replica of the controller could be reached.
func withoutWebhook(t *testing.T, l *lab.Lab, f func()) {
	t.Helper()
	configuration := &admissionv1.MutatingWebhookConfiguration{}
	within(t, time.Minute, "", func(ctx context.Context) error {
		return l.Management.Client.Get(ctx, client.ObjectKey{Name: webhookName}, configuration)
	})
	must(t, l.Management.Client.Delete(t.Context(), configuration))
	f()
	configuration.ResourceVersion, configuration.UID = "", ""
	must(t, l.Management.Client.Create(t.Context(), configuration))
}
