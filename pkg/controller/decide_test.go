package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
)

func TestDecide(t *testing.T) {
	// Each case changes a Cluster that opts in and its Tunnel.
	tests := map[string]struct {
		change func(*objects)
		all    bool
		want   action
	}{
		"a Cluster with its Tunnel is served":                         {want: serve},
		"a Cluster without Tunnel gets one":                           {change: func(o *objects) { o.tunnel = nil }, want: serve},
		"without the label it gets none":                              {change: func(o *objects) { o.cluster.Labels = nil }, want: remove},
		"with all clusters it needs no label":                         {change: func(o *objects) { o.cluster.Labels = nil }, all: true, want: serve},
		"with all clusters it may opt out":                            {change: func(o *objects) { o.cluster.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled }, all: true, want: remove},
		"the Tunnel is being deleted":                                 {change: func(o *objects) { o.tunnel.DeletionTimestamp = &now }, want: remove},
		"the Tunnel is a user's":                                      {change: func(o *objects) { o.tunnel.OwnerReferences = nil }, want: serve},
		"the Tunnel is a user's and not wanted":                       {change: func(o *objects) { o.tunnel.OwnerReferences, o.cluster.Labels = nil, nil }, want: leave},
		"the Tunnel is controlled by another kind":                    {change: func(o *objects) { o.tunnel.OwnerReferences[0].Kind = "App" }, want: refuse},
		"the Tunnel is controlled by a Cluster of a stranger's group": {change: func(o *objects) { o.tunnel.OwnerReferences[0].APIVersion = "example.org/v1" }, want: refuse},
		"the Tunnel is controlled by a Cluster of an older version":   {change: func(o *objects) { o.tunnel.OwnerReferences[0].APIVersion = "cluster.x-k8s.io/v1beta1" }, want: serve},
		"the Cluster is being deleted":                                {change: func(o *objects) { o.cluster.DeletionTimestamp = &now }, want: serve},
		"both are being deleted":                                      {change: func(o *objects) { o.cluster.DeletionTimestamp, o.tunnel.DeletionTimestamp = &now, &now }, want: serve},
		"the Cluster is being deleted and opts out":                   {change: func(o *objects) { o.cluster.DeletionTimestamp, o.cluster.Labels = &now, nil }, want: serve},
		"the Cluster is being deleted and has no Tunnel":              {change: func(o *objects) { o.cluster.DeletionTimestamp, o.tunnel = &now, nil }, want: leave},
		"the Cluster is gone":                                         {change: func(o *objects) { o.cluster = nil }, want: end},
		"the Cluster is another of the same name":                     {change: func(o *objects) { o.cluster.UID = "2" }, want: end},
		"the Cluster is another and paused":                           {change: func(o *objects) { o.cluster.UID = "2"; o.cluster.Spec.Paused = ptr.To(true) }, want: end},
		"there is only a user's Tunnel":                               {change: func(o *objects) { o.cluster, o.tunnel.OwnerReferences = nil, nil }, want: leave},
		"there is only a user's Tunnel, being deleted":                {change: func(o *objects) { o.cluster, o.tunnel.OwnerReferences, o.tunnel.DeletionTimestamp = nil, nil, &now }, want: end},
		"there is nothing":                                            {change: func(o *objects) { o.cluster, o.tunnel = nil, nil }, want: leave},
		"the Cluster is paused":                                       {change: func(o *objects) { o.cluster.Spec.Paused = ptr.To(true) }, want: leave},
		"the Cluster is paused by annotation":                         {change: func(o *objects) { o.cluster.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} }, want: leave},
		"the Tunnel is paused":                                        {change: func(o *objects) { o.tunnel.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} }, want: leave},
		"the Cluster is paused and opts out":                          {change: func(o *objects) { o.cluster.Spec.Paused = ptr.To(true); o.cluster.Labels = nil }, want: leave},
		"the Cluster is paused and its Tunnel deleted":                {change: func(o *objects) { o.cluster.Spec.Paused = ptr.To(true); o.tunnel.DeletionTimestamp = &now }, want: leave},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.UID = "1"
			tunnel := tunnelNamed(cluster)
			fillTunnel(tunnel, cluster)
			o := objects{cluster: cluster, tunnel: tunnel}
			if tc.change != nil {
				tc.change(&o)
			}
			if got := decide(o, tc.all); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

var now = metav1.Now()

func TestFillTunnelChangesNothingThatIsThere(t *testing.T) {
	cluster := kubetest.Cluster("prod", "c1")
	cluster.UID = "1"
	tunnel := tunnelNamed(cluster)
	tunnel.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "c1", UID: "1"}}
	fillTunnel(tunnel, cluster)
	if len(tunnel.OwnerReferences) != 1 || !metav1.IsControlledBy(tunnel, cluster) {
		t.Errorf("owners %v", tunnel.OwnerReferences)
	}
	before := tunnel.DeepCopy()
	cluster.Spec.ControlPlaneEndpoint.Host = "192.0.2.99"
	fillTunnel(tunnel, cluster)
	if tunnel.Spec.ID != before.Spec.ID || !cmp.Equal(tunnel.Spec.APIServer, before.Spec.APIServer) {
		t.Errorf("spec %+v, was %+v", tunnel.Spec, before.Spec)
	}
}

func TestEdgesOnControlPlaneMachinesDialTheirOwnAPIServer(t *testing.T) {
	onMachine := v1alpha1.APIServerSpec{Address: "127.0.0.1", Port: 6443, Others: []v1alpha1.APIServerAddress{{Address: "192.0.2.10", Port: 7443}}}
	tests := map[string]struct {
		change func(*clusterv1.Cluster, *v1alpha1.Tunnel)
		want   v1alpha1.APIServerSpec
	}{
		"by annotation":                    {want: onMachine},
		"without it":                       {change: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) { c.Annotations = nil }, want: v1alpha1.APIServerSpec{Address: "192.0.2.10", Port: 7443}},
		"while there is no endpoint":       {change: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) { c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{} }},
		"where the user says what to dial": {change: func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.Spec.APIServer.Address = "10.0.0.1" }, want: v1alpha1.APIServerSpec{Address: "10.0.0.1", Port: 7443}},
		"on a port of the Cluster's": {
			change: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) { c.Spec.ClusterNetwork.APIServerPort = 8443 },
			want:   v1alpha1.APIServerSpec{Address: "127.0.0.1", Port: 8443, Others: onMachine.Others},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.Annotations = map[string]string{v1alpha1.EdgesAnnotation: v1alpha1.EdgesOnControlPlane}
			cluster.Spec.ControlPlaneEndpoint.Port = 7443
			tunnel := tunnelNamed(cluster)
			if tc.change != nil {
				tc.change(cluster, tunnel)
			}
			fillTunnel(tunnel, cluster)
			fillTunnel(tunnel, cluster) // a second time nothing changes
			if diff := cmp.Diff(tc.want, tunnel.Spec.APIServer); diff != "" {
				t.Error(diff)
			}
		})
	}
}
