package kubetest

import (
	"os"
	"testing"

	"k8s.io/client-go/rest"
)

// TrustClientCA makes the server accept client certificates of one more CA, and returns a config without credentials.
// The server reloads its CAs after a moment.
func (s *Server) TrustClientCA(t testing.TB, caPEM []byte) *rest.Config {
	t.Helper()
	config := s.Config(t)
	files := s.environment.ControlPlane.GetAPIServer().Configure().Get("client-ca-file").Get(nil)
	if len(files) != 1 {
		t.Fatalf("client CAs are in %v, want one file", files)
	}
	file, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(caPEM); err != nil {
		t.Fatal(err)
	}
	return &rest.Config{Host: config.Host, TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData}}
}
