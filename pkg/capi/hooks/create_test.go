package hooks

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

func TestBeforeClusterCreate(t *testing.T) {
	cluster := clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "prod", Name: "c1", UID: "1", Labels: map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled},
		Annotations: map[string]string{v1alpha1.EdgesAnnotation: v1alpha1.EdgesOnControlPlane},
	}}
	tunnel := func(change func(*v1alpha1.Tunnel)) *v1alpha1.Tunnel {
		o := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "c1"}}
		o.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(&cluster, clusterv1.GroupVersion.WithKind("Cluster")),
		}
		o.Status.Hostname = "c1.prod.tunnels.example.com"
		o.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted},
		}
		o.Status.Tokens = []v1alpha1.TokenStatus{{ExpiresAt: metav1.NewTime(now.Add(time.Minute)), MaxUses: 1}}
		change(o)
		return o
	}
	tests := map[string]struct {
		change func(*clusterv1.Cluster)
		tunnel *v1alpha1.Tunnel
		want   string // empty: the Cluster may continue
		retry  int32
	}{
		"edges can enrol":        {tunnel: tunnel(func(*v1alpha1.Tunnel) {})},
		"no edges are requested": {change: func(c *clusterv1.Cluster) { c.Annotations = nil }},
		"no Tunnel yet":          {want: "waiting for the controller to create the Tunnel", retry: 5},
		"not accepted yet": {
			tunnel: tunnel(func(o *v1alpha1.Tunnel) { o.Status = v1alpha1.TunnelStatus{} }),
			want:   "waiting for the controller to accept",
			retry:  5,
		},
		"no token yet": {
			tunnel: tunnel(func(o *v1alpha1.Tunnel) { o.Status.Tokens = nil }),
			want:   "waiting for the controller to write the bootstrap Secret",
			retry:  5,
		},
		"an old token": {
			tunnel: tunnel(func(o *v1alpha1.Tunnel) { o.Status.Tokens[0].ExpiresAt = metav1.NewTime(now) }),
			want:   "waiting for the controller to write",
			retry:  5,
		},
		"a token that is used up": {
			tunnel: tunnel(func(o *v1alpha1.Tunnel) { o.Status.Tokens[0].Uses = 1 }),
			want:   "waiting for the controller to write",
			retry:  5,
		},
		"the Tunnel of another": {
			tunnel: tunnel(func(o *v1alpha1.Tunnel) { o.OwnerReferences[0].UID = "0" }),
			want:   "of an earlier Cluster",
			retry:  5,
		},
		"no label": {
			change: func(c *clusterv1.Cluster) { c.Labels = nil },
			want:   "set it to enabled",
			retry:  30,
		},
		"a mode without any tunnel": {
			tunnel: tunnel(func(o *v1alpha1.Tunnel) { o.Status.Conditions[0].Reason = v1alpha1.ReasonNotTunnelled }),
			want:   "choose another mode",
			retry:  30,
		},
		"a name that another one has": {
			tunnel: tunnel(func(o *v1alpha1.Tunnel) { o.Status.Hostname, o.Status.Conditions[0].Message = "", "it is taken" }),
			want:   "not accepted: it is taken",
			retry:  30,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			objects := fake.NewClientBuilder().WithScheme(scheme(t))
			if tc.tunnel != nil {
				objects = objects.WithObjects(tc.tunnel)
			}
			request := &runtimehooksv1.BeforeClusterCreateRequest{Cluster: *cluster.DeepCopy()}
			if tc.change != nil {
				tc.change(&request.Cluster)
			}
			var response runtimehooksv1.BeforeClusterCreateResponse
			newExtension(t, objects.Build()).BeforeClusterCreate(t.Context(), request, &response)
			if response.Status != runtimehooksv1.ResponseStatusSuccess || response.RetryAfterSeconds != tc.retry ||
				(tc.want == "") != (response.Message == "") ||
				!strings.Contains(response.Message, tc.want) {
				t.Errorf("%v", response)
			}
		})
	}
}

// TestAnUnresponsiveAPIServerDelaysTheCluster takes the time of one request, and delays the Cluster.
func TestAnUnresponsiveAPIServerDelaysTheCluster(t *testing.T) {
	var deadline time.Duration
	tunnels := fake.NewClientBuilder().WithScheme(scheme(t)).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			until, _ := ctx.Deadline()
			deadline = time.Until(until)
			return errors.New("no answer")
		},
	}).Build()
	var request runtimehooksv1.BeforeClusterCreateRequest
	request.Cluster.Labels = map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled}
	request.Cluster.Annotations = map[string]string{v1alpha1.EdgesAnnotation: v1alpha1.EdgesOnControlPlane}
	var response runtimehooksv1.BeforeClusterCreateResponse
	newExtension(t, tunnels).BeforeClusterCreate(t.Context(), &request, &response)
	if response.Status != runtimehooksv1.ResponseStatusFailure || !strings.Contains(response.Message, "reading Tunnel") {
		t.Errorf("%v", response)
	}
	if deadline <= 0 || deadline >= timeoutSeconds*time.Second {
		t.Errorf("the apiserver has %s to answer", deadline)
	}
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}
