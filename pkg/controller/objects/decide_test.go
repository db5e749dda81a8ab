package objects

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
		change func(*Group)
		all    bool
		want   Action
	}{
		"a Cluster with its Tunnel is served": {want: Serve},
		"a Cluster without Tunnel gets one": {
			change: func(o *Group) { o.Tunnel = nil }, want: Serve,
		},
		"without the label it gets none": {
			change: func(o *Group) { o.Cluster.Labels = nil }, want: Remove,
		},
		"with all clusters it needs no label": {
			change: func(o *Group) { o.Cluster.Labels = nil }, all: true, want: Serve,
		},
		"with all clusters it may opt out": {
			change: func(o *Group) { o.Cluster.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled }, all: true, want: Remove,
		},
		"the Tunnel is being deleted": {
			change: func(o *Group) { o.Tunnel.DeletionTimestamp = &now }, want: Remove,
		},
		"the Tunnel is a user's": {
			change: func(o *Group) { o.Tunnel.OwnerReferences = nil }, want: Serve,
		},
		"the Tunnel is a user's and not wanted": {
			change: func(o *Group) { o.Tunnel.OwnerReferences, o.Cluster.Labels = nil, nil }, want: Leave,
		},
		"the Tunnel is controlled by another kind": {
			change: func(o *Group) { o.Tunnel.OwnerReferences[0].Kind = "App" }, want: Refuse,
		},
		"the Tunnel is controlled by a Cluster of another API group": {
			change: func(o *Group) { o.Tunnel.OwnerReferences[0].APIVersion = "example.org/v1" }, want: Refuse,
		},
		"the Tunnel is controlled by a Cluster of an older version": {
			change: func(o *Group) { o.Tunnel.OwnerReferences[0].APIVersion = "cluster.x-k8s.io/v1beta1" }, want: Serve,
		},
		"the Cluster is being deleted": {
			change: func(o *Group) { o.Cluster.DeletionTimestamp = &now }, want: Serve,
		},
		"both are being deleted": {
			change: func(o *Group) { o.Cluster.DeletionTimestamp, o.Tunnel.DeletionTimestamp = &now, &now }, want: Serve,
		},
		"the Cluster is being deleted and opts out": {
			change: func(o *Group) { o.Cluster.DeletionTimestamp, o.Cluster.Labels = &now, nil }, want: Serve,
		},
		"the Cluster is being deleted and has no Tunnel": {
			change: func(o *Group) { o.Cluster.DeletionTimestamp, o.Tunnel = &now, nil }, want: Leave,
		},
		"the Cluster is removed":                  {change: func(o *Group) { o.Cluster = nil }, want: End},
		"the Cluster is another of the same name": {change: func(o *Group) { o.Cluster.UID = "2" }, want: End},
		"the Cluster is another and paused": {
			change: func(o *Group) { o.Cluster.UID = "2"; o.Cluster.Spec.Paused = ptr.To(true) }, want: End,
		},
		"there is only a user's Tunnel": {
			change: func(o *Group) { o.Cluster, o.Tunnel.OwnerReferences = nil, nil }, want: Leave,
		},
		"there is only a user's Tunnel, being deleted": {
			change: func(o *Group) { o.Cluster, o.Tunnel.OwnerReferences, o.Tunnel.DeletionTimestamp = nil, nil, &now },
			want:   End,
		},
		"there is nothing": {
			change: func(o *Group) { o.Cluster, o.Tunnel = nil, nil }, want: Leave,
		},
		"the Cluster is paused": {
			change: func(o *Group) { o.Cluster.Spec.Paused = ptr.To(true) }, want: Leave,
		},
		"the Cluster is paused by annotation": {
			change: func(o *Group) { o.Cluster.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} }, want: Leave,
		},
		"the Tunnel is paused": {
			change: func(o *Group) { o.Tunnel.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} }, want: Leave,
		},
		"the Cluster is paused and opts out": {
			change: func(o *Group) { o.Cluster.Spec.Paused = ptr.To(true); o.Cluster.Labels = nil }, want: Leave,
		},
		"the Cluster is paused and its Tunnel deleted": {
			change: func(o *Group) { o.Cluster.Spec.Paused = ptr.To(true); o.Tunnel.DeletionTimestamp = &now }, want: Leave,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.UID = "1"
			tunnel := tunnelOf(cluster)
			CompleteTunnel(tunnel, cluster)
			o := Group{Cluster: cluster, Tunnel: tunnel}
			if tc.change != nil {
				tc.change(&o)
			}
			if got := Decide(o, tc.all); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

var now = metav1.Now()

func TestFillTunnelKeepsExistingFields(t *testing.T) {
	cluster := kubetest.Cluster("prod", "c1")
	cluster.UID = "1"
	tunnel := tunnelOf(cluster)
	tunnel.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "c1", UID: "1",
	}}
	CompleteTunnel(tunnel, cluster)
	if len(tunnel.OwnerReferences) != 1 || !metav1.IsControlledBy(tunnel, cluster) {
		t.Errorf("owners %v", tunnel.OwnerReferences)
	}
	before := tunnel.DeepCopy()
	cluster.Spec.ControlPlaneEndpoint.Host = "192.0.2.99"
	CompleteTunnel(tunnel, cluster)
	if tunnel.Spec.ID != before.Spec.ID || !cmp.Equal(tunnel.Spec.APIServer, before.Spec.APIServer) {
		t.Errorf("spec %+v, was %+v", tunnel.Spec, before.Spec)
	}
}

func TestEdgesOnControlPlaneMachinesDialTheirOwnAPIServer(t *testing.T) {
	onMachine := v1alpha1.APIServerSpec{
		Address: "127.0.0.1", Port: 6443, Others: []v1alpha1.APIServerAddress{{Address: "192.0.2.10", Port: 7443}},
	}
	tests := map[string]struct {
		change func(*clusterv1.Cluster, *v1alpha1.Tunnel)
		want   v1alpha1.APIServerSpec
	}{
		"by annotation": {want: onMachine},
		"without it": {
			change: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) { c.Annotations = nil },
			want:   v1alpha1.APIServerSpec{Address: "192.0.2.10", Port: 7443},
		},
		"while there is no endpoint": {
			change: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) { c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{} },
		},
		"where the user sets the address": {
			change: func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.Spec.APIServer.Address = "10.0.0.1" },
			want:   v1alpha1.APIServerSpec{Address: "10.0.0.1", Port: 7443},
		},
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
			tunnel := tunnelOf(cluster)
			if tc.change != nil {
				tc.change(cluster, tunnel)
			}
			CompleteTunnel(tunnel, cluster)
			CompleteTunnel(tunnel, cluster) // the second call changes nothing
			if diff := cmp.Diff(tc.want, tunnel.Spec.APIServer); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// tunnelOf returns an empty Tunnel with the names of a Cluster.
func tunnelOf(cluster *clusterv1.Cluster) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
}
