package source

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// errNotRead is returned before all objects have been read once.
var errNotRead = errors.New("the objects of the management cluster have not been read yet")

// tokenIndex indexes Tunnels by the hashes of their tokens.
const tokenIndex = "status.tokens.sha256"

func tokenHashes(object client.Object) []string {
	tunnel, ok := object.(*v1alpha1.Tunnel)
	if !ok {
		return nil
	}
	return hashes(tunnel.Status.Tokens)
}

func hashes(tokens []v1alpha1.TokenStatus) []string {
	all := make([]string, len(tokens))
	for i, token := range tokens {
		all[i] = token.SHA256
	}
	return all
}

// EdgeToken implements enrolserver.Tokens. A token is valid while it has not expired, has uses left, its Tunnel
// belongs to a Cluster and holds its id, and no edge that enrolled with it is revoked. For a node that is recorded with
// the token no use has to be left: it repeats a request, whose answer it did not receive. The signer repeats the check
// with the object itself.
func (k *Kube) EdgeToken(hash, node string) (enrol.Grant, error) {
	return k.grant(tokenIndex, hash, func(tunnel *v1alpha1.Tunnel) bool {
		token, ok := k.unexpired(tunnel.Status.Tokens, hash)
		return ok && (token.Uses < token.MaxUses || recorded(tunnel, hash, node)) && !decision.TokenRevoked(tunnel, hash)
	})
}

// recorded reports whether a node has enrolled with a token.
func recorded(tunnel *v1alpha1.Tunnel, hash, node string) bool {
	return slices.ContainsFunc(tunnel.Status.Edges, func(e v1alpha1.EdgeStatus) bool {
		return e.NodeID == model.NodeID(node) && e.TokenSHA256 == hash
	})
}

// grant returns the grant of the Tunnel that the index finds for the hash, if good accepts the Tunnel.
func (k *Kube) grant(index, hash string, good func(*v1alpha1.Tunnel) bool) (enrol.Grant, error) {
	if !k.hasRead() {
		return enrol.Grant{}, errNotRead
	}
	ctx := context.Background() // the reads below are from memory
	var found v1alpha1.TunnelList
	if err := k.objects.List(ctx, &found, client.MatchingFields{index: hash}); err != nil {
		return enrol.Grant{}, fmt.Errorf("finding token: %w", err)
	}
	for i := range found.Items {
		tunnel := &found.Items[i]
		if !good(tunnel) {
			continue
		}
		key := model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}
		now, cluster, err := k.pair(ctx, key)
		if err != nil {
			return enrol.Grant{}, err
		}
		if now != nil && good(now) && admits(cluster, now, k.Now()) {
			return enrol.Grant{Tunnel: key, ID: now.HeldID(), Egress: decision.Role(now) == model.RoleEgress}, nil
		}
	}
	return enrol.Grant{}, enrol.ErrUnknownToken
}

// unexpired returns the record of a token, if it has not expired.
func (k *Kube) unexpired(tokens []v1alpha1.TokenStatus, hash string) (v1alpha1.TokenStatus, bool) {
	for _, token := range tokens {
		if token.SHA256 == hash {
			return token, k.Now().Before(token.ExpiresAt.Time)
		}
	}
	return v1alpha1.TokenStatus{}, false
}

// GatewayToken implements enrolserver.Tokens.
func (k *Kube) GatewayToken(hash string) error {
	known, err := k.installation(v1alpha1.GatewayTokenHashKey)
	if err != nil {
		return err
	}
	if known == "" || subtle.ConstantTimeCompare([]byte(known), []byte(hash)) == 0 {
		return enrol.ErrUnknownToken
	}
	return nil
}

// TrustBundle returns the installation's trust bundle in PEM; empty while it is not known.
func (k *Kube) TrustBundle() []byte {
	bundle, err := k.installation(v1alpha1.TrustBundleKey)
	if err != nil {
		return nil // not logged: callers report that it is missing
	}
	return []byte(bundle)
}

// installation reads one value of the installation's ConfigMap; empty if it does not exist.
func (k *Kube) installation(key string) (string, error) {
	if !k.hasRead() {
		return "", errNotRead
	}
	var found corev1.ConfigMap
	at := client.ObjectKey{Namespace: k.Namespace, Name: v1alpha1.InstallationConfigMapName}
	err := k.objects.Get(context.Background(), at, &found) // from memory
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("reading ConfigMap %s: %w", at, err)
	}
	return found.Data[key], nil
}

func (k *Kube) hasRead() bool {
	select {
	case <-k.read:
		return true
	default:
		return false
	}
}
