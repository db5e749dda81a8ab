package source

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	"github.com/fairlead/fairlead/pkg/model"
)

// heldIDIndex indexes Tunnels by the ids that they hold.
const heldIDIndex = "status.id"

func heldIDs(object client.Object) []string {
	if tunnel, ok := object.(*v1alpha1.Tunnel); ok && tunnel.HeldID() != "" {
		return []string{tunnel.HeldID()}
	}
	return nil
}

// PodToken implements enrolserver.PodTokens. A token is valid if the recorded issuer of the tunnel that it names has
// signed it for a Pod of spec.edgeServiceAccount, and the edge of that Pod is not revoked. The signer repeats the check
// with the object itself.
func (k *Kube) PodToken(token string) (enrol.PodGrant, error) {
	id, err := podtoken.TunnelID(token)
	if err != nil {
		return enrol.PodGrant{}, denied(err)
	}
	if !k.hasRead() {
		return enrol.PodGrant{}, errNotRead
	}
	var found v1alpha1.TunnelList // from memory
	if err := k.objects.List(context.Background(), &found, client.MatchingFields{heldIDIndex: id}); err != nil {
		return enrol.PodGrant{}, fmt.Errorf("finding tunnel of ServiceAccount token: %w", err)
	}
	if len(found.Items) != 1 { // a token for a tunnel that does not exist reveals no more than one for another tunnel
		return enrol.PodGrant{}, denied(podtoken.ErrInvalid)
	}
	key := model.Key{Namespace: found.Items[0].Namespace, Name: found.Items[0].Name}
	tunnel, cluster, err := k.pair(context.Background(), key)
	if err != nil {
		return enrol.PodGrant{}, err
	}
	if tunnel == nil || tunnel.HeldID() != id || cluster == nil || !admits(cluster, tunnel, k.Now()) {
		return enrol.PodGrant{}, denied(podtoken.ErrInvalid)
	}
	issuer, err := decision.PodIssuer(tunnel, cluster.UID)
	if err != nil {
		return enrol.PodGrant{}, denied(err)
	}
	pod, err := issuer.Verify(token, k.Now())
	if err != nil {
		return enrol.PodGrant{}, denied(err)
	}
	node := model.NodeNameForPod(id, pod.UID)
	if slices.Contains(tunnel.Spec.RevokedEdges, node) {
		return enrol.PodGrant{}, denied(fmt.Errorf("the edge %s of this Pod is revoked", node))
	}
	grant := enrol.Grant{Tunnel: key, ID: id, Egress: decision.Role(tunnel) == model.RoleEgress}
	return enrol.PodGrant{Grant: grant, Node: node}, nil
}

func denied(err error) error { return fmt.Errorf("%w: %w", enrol.ErrDeniedToken, err) }
