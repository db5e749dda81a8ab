package hooks

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/capi/inject"
)

const (
	// soonSeconds is the retry delay for changes that the controller makes within a second.
	soonSeconds = 5
	// laterSeconds is the retry delay for changes that a person must make.
	laterSeconds = 30
	// readTimeout leaves time for the response.
	readTimeout = (timeoutSeconds - 2) * time.Second
)

// BeforeClusterCreate delays the topology of a new Cluster until its edges can enrol: until its Tunnel is accepted and
// has a recorded token. The bootstrap Secret is written right after that. This extension does not read the Secret
// itself, because permission to read one Secret of a Cluster is permission to read all of them, including the
// cluster-admin's kubeconfig.
func (e *Extension) BeforeClusterCreate(
	ctx context.Context, request *runtimehooksv1.BeforeClusterCreateRequest,
	response *runtimehooksv1.BeforeClusterCreateResponse,
) {
	response.Status = runtimehooksv1.ResponseStatusSuccess
	cluster := &request.Cluster
	if err := checkRequest(cluster.Labels, cluster.Annotations); err != nil {
		response.Message, response.RetryAfterSeconds = "fairlead: "+err.Error(), laterSeconds
		return
	}
	if !inject.Requested(cluster.Labels, cluster.Annotations) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var tunnel v1alpha1.Tunnel
	err := e.tunnels.Get(ctx, client.ObjectKeyFromObject(cluster), &tunnel)
	switch {
	case apierrors.IsNotFound(err):
		response.Message, response.RetryAfterSeconds = "fairlead: waiting for the controller to create the Tunnel of the "+
			"Cluster", soonSeconds
	case err != nil:
		fail(&response.CommonResponse, fmt.Errorf("reading Tunnel: %w", err))
	default:
		response.Message, response.RetryAfterSeconds = e.wait(cluster, &tunnel)
	}
}

// wait returns what a Cluster still waits for, and when to retry; "" and zero when its edges can enrol.
func (e *Extension) wait(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) (message string, seconds int32) {
	if tunnel.DeletionTimestamp != nil || (cluster.UID != "" && !metav1.IsControlledBy(tunnel, cluster)) {
		return "fairlead: waiting for the deletion of the Tunnel of an earlier Cluster of this name", soonSeconds
	}
	switch accepted := apimeta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionAccepted); {
	case accepted == nil:
		return "fairlead: waiting for the controller to accept the Tunnel", soonSeconds
	case accepted.Reason == v1alpha1.ReasonNotTunnelled:
		return "fairlead: spec.kubeconfig.mode of the Tunnel uses no tunnel, so no edge can enrol: " +
			"choose another mode, or remove the annotation " + v1alpha1.EdgesAnnotation + " from the Cluster", laterSeconds
	case tunnel.Status.Hostname == "":
		return "fairlead: the Tunnel is not accepted: " + accepted.Message, laterSeconds
	}
	now := e.now()
	if !slices.ContainsFunc(
		tunnel.Status.Tokens, func(t v1alpha1.TokenStatus) bool { return now.Before(t.ExpiresAt.Time) && t.Uses < t.MaxUses },
	) {
		return "fairlead: waiting for the controller to write the bootstrap Secret of the Cluster", soonSeconds
	}
	return "", 0
}
