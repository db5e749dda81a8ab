package decision

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
)

var (
	errNoPods = errors.New(
		"the Tunnel accepts no ServiceAccount tokens: set spec.edgeServiceAccount, or use a bootstrap token",
	)
	errNoKeys = errors.New(
		"the keys of the workload cluster have not been read yet: the first edge needs a bootstrap token",
	)
)

// PodsEnrol reports whether Pods of the Cluster with this UID may enrol as edges of a Tunnel: the spec requests it, and
// the Tunnel is served for this very Cluster.
func PodsEnrol(tunnel *v1alpha1.Tunnel, cluster types.UID) bool {
	return acceptsPods(tunnel) && ServedFor(tunnel, cluster)
}

func acceptsPods(tunnel *v1alpha1.Tunnel) bool {
	return tunnel.Spec.EdgeServiceAccount != nil && tunnel.HeldID() != "" && tunnel.Spec.Kubeconfig.Mode.Tunnelled()
}

// ServedFor reports whether the recorded decision permits serving clients of a Tunnel for the Cluster with this UID.
func ServedFor(tunnel *v1alpha1.Tunnel, cluster types.UID) bool {
	served := tunnel.Status.Served
	return cluster != "" && served != nil && !served.EnrolmentOnly && served.ClusterUID == cluster
}

// PodIssuer returns the issuer whose ServiceAccount tokens enrol Pods as edges of a Tunnel that belongs to the Cluster
// with this UID. The error states why there is none: the spec does not request it, or the controller has recorded no
// keys for this very Cluster.
func PodIssuer(tunnel *v1alpha1.Tunnel, cluster types.UID) (podtoken.Issuer, error) {
	account, recorded := tunnel.Spec.EdgeServiceAccount, tunnel.Status.ServiceAccountIssuer
	switch {
	case !acceptsPods(tunnel):
		return podtoken.Issuer{}, errNoPods
	case !ServedFor(tunnel, cluster),
		recorded == nil || recorded.ClusterUID != cluster || recorded.Issuer == "" || len(recorded.Keys) == 0:
		return podtoken.Issuer{}, errNoKeys
	}
	issuer := podtoken.Issuer{
		URL: recorded.Issuer, TunnelID: tunnel.HeldID(), Namespace: account.Namespace, ServiceAccount: account.Name,
	}
	for _, key := range recorded.Keys {
		issuer.Keys = append(issuer.Keys, podtoken.Key{ID: key.ID, PublicKey: key.PublicKey})
	}
	return issuer, nil
}
