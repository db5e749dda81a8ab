package kubeconfig

import clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

// OutsideOfUser returns the name of the field that makes a user more than data, or an empty string if there is none.
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
