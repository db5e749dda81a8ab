package move

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/pkg/observed"
)

func TestUnmatchedEdges(t *testing.T) {
	for name, tc := range map[string]struct {
		here, there []string
		want        int
	}{
		"all are there":                           {here: []string{"a", "b"}, there: []string{"b", "a"}},
		"none is":                                 {here: []string{"a", "b"}, want: 2},
		"another one is":                          {here: []string{"a"}, there: []string{"c"}, want: 1},
		"one of two on a host":                    {here: []string{"a", "a"}, there: []string{"a"}, want: 1},
		"one whose host does not resolve":         {here: []string{"a", "b"}, there: []string{"", "b"}},
		"a local one whose host does not resolve": {here: []string{"", "b"}, there: []string{"a", "b"}},
		"a host and one that has none":            {here: []string{"", "a"}, there: []string{"a"}, want: 1},
	} {
		var here, there []observed.Edge
		for _, h := range tc.here {
			here = append(here, observed.Edge{Host: h})
		}
		for _, h := range tc.there {
			there = append(there, observed.Edge{Host: h})
		}
		if got := unmatched(here, there); len(got) != tc.want {
			t.Errorf("%s: %d, want %d", name, len(got), tc.want)
		}
	}
}

func TestKubeconfigsOfSecretsAreOnlyData(t *testing.T) {
	for field, change := range map[string]func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo){
		"": func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {},
		"exec": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.Exec = &clientcmdapi.ExecConfig{Command: "true"}
		},
		"auth-provider": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "oidc"}
		},
		"tokenFile": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.TokenFile = "/etc/hostname" },
		"client-certificate": func(_ *clientcmdapi.Cluster,
			u *clientcmdapi.AuthInfo,
		) {
			u.ClientCertificate = "/etc/hostname"
		},
		"client-key": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.ClientKey = "/etc/hostname" },
		"certificate-authority": func(c *clientcmdapi.Cluster,
			_ *clientcmdapi.AuthInfo,
		) {
			c.CertificateAuthority = "/etc/hostname"
		},
	} {
		cluster, user := &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}, &clientcmdapi.AuthInfo{Token: "t0ken"}
		change(cluster, user)
		file := clientcmdapi.NewConfig()
		file.Clusters["c"], file.AuthInfos["u"], file.Contexts["x"] = cluster, user, &clientcmdapi.Context{
			Cluster:  "c",
			AuthInfo: "u",
		}
		file.CurrentContext = "x"
		data, err := clientcmd.Write(*file)
		if err != nil {
			t.Fatal(err)
		}
		switch _, err := inlineConfig(data); {
		case field == "" && err != nil:
			t.Errorf("data alone: %v", err)
		case field != "" && (err == nil || !strings.Contains(err.Error(), " has "+field)):
			t.Errorf("%s: got %v", field, err)
		case err != nil && (strings.Contains(err.Error(), "t0ken") || strings.Contains(err.Error(), "hostname")):
			t.Errorf("%s: it quotes what is in it: %v", field, err)
		}
	}
	if _, err := inlineConfig([]byte("\tno YAML")); err == nil || !strings.Contains(err.Error(), "not a kubeconfig") {
		t.Errorf("garbage: %v", err)
	}
}
