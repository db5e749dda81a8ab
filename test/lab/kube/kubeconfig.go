package kube

import (
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig returns a kubeconfig with the names of entries that Cluster API's control-plane providers use.
func Kubeconfig(cluster, server string, caPEM []byte, user clientcmdapi.AuthInfo) ([]byte, error) {
	name := cluster + "-admin"
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{cluster: {Server: server, CertificateAuthorityData: caPEM}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: &user},
		Contexts:       map[string]*clientcmdapi.Context{name + "@" + cluster: {Cluster: cluster, AuthInfo: name}},
		CurrentContext: name + "@" + cluster,
	}
	data, err := clientcmd.Write(config)
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of %s: %w", cluster, err)
	}
	return data, nil
}

// AdminKubeconfig returns the administrator's kubeconfig for an apiserver, with the server's address in its own
// network.
func (a *APIServer) AdminKubeconfig(entry string) ([]byte, error) {
	return Kubeconfig(entry, a.URL(), a.CA.CertPEM,
		clientcmdapi.AuthInfo{ClientCertificateData: a.Admin.CertPEM, ClientKeyData: a.Admin.KeyPEM})
}

// WriteKubeconfig writes a kubeconfig that a process reads.
func WriteKubeconfig(file string, data []byte, err error) error {
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}
