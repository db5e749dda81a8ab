package source

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// reportTokenIndex finds Tunnels by the hashes of their tokens for boot reports. It is not that of bootstrap tokens, so neither kind
// is ever found as the other.
const reportTokenIndex = "status.bootReportTokens.sha256"

func reportTokenHashes(object client.Object) []string {
	tunnel, ok := object.(*v1alpha1.Tunnel)
	if !ok {
		return nil
	}
	return hashes(tunnel.Status.BootReportTokens)
}

// ReportToken implements enrol.ReportTokens. A token is good while it has not expired and its Tunnel belongs to a Cluster.
func (k *Kube) ReportToken(hash string) (enrol.Grant, error) {
	if !k.hasRead() {
		return enrol.Grant{}, errNotRead
	}
	ctx := context.Background() // what follows reads memory
	var found v1alpha1.TunnelList
	if err := k.objects.List(ctx, &found, client.MatchingFields{reportTokenIndex: hash}); err != nil {
		return enrol.Grant{}, fmt.Errorf("looking for token: %w", err)
	}
	for _, tunnel := range found.Items {
		// Reports are kept by the id, so it must be this Tunnel's: another one may hold it.
		if !k.lives(tunnel.Status.BootReportTokens, hash) || tunnel.Spec.ID != tunnel.Status.ID {
			continue
		}
		c, ok, err := k.candidate(ctx, model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name})
		if err != nil {
			return enrol.Grant{}, err
		}
		if ok {
			return enrol.Grant{Tunnel: c.Key, ID: c.ID}, nil
		}
	}
	return enrol.Grant{}, enrol.ErrUnknownToken
}

// lives says whether a token is on record and has not expired.
func (k *Kube) lives(tokens []v1alpha1.TokenStatus, hash string) bool {
	for _, token := range tokens {
		if token.SHA256 == hash {
			return k.Now().Before(token.ExpiresAt.Time)
		}
	}
	return false
}
