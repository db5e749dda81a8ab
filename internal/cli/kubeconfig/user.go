package kubeconfig

import clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

// OutsideOfUser is the field by which a user is more than data; empty: none.
func OutsideOfUser(user *clientcmdapi.AuthInfo) string {
	switch {
	case user.Exec != nil:
		return "exec"
	case user.AuthProvider != nil:
		return "auth-provider"
	case user.TokenFile != "":
		return "tokenFile"
	case user.ClientCertificate != "":
		return "client-certificate"
	case user.ClientKey != "":
		return "client-key"
	}
	return ""
}
