package lab

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
)

// CA reads the key of the installation's CA, as an administrator can.
func (l *Lab) CA(ctx context.Context) (*certs.CA, error) {
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: InstallationNamespace, Name: v1alpha1.CASecretName}
	if err := l.Management.Client.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("reading the installation's CA: %w", err)
	}
	return certs.ParseCA(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
}
