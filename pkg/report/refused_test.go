package report

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func TestARefusalIsLoggedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	for _, node := range []string{"edge-1", "edge-2"} {
		s := edgeOf(node, idA)
		client := reportv1.NewReportClient(w.dial(t, &s, p.address))
		for range 5 { // whoever is refused comes back
			stream, err := client.Gateway(t.Context())
			if err == nil {
				_, err = stream.Recv()
			}
			if status.Code(err) != codes.PermissionDenied {
				t.Fatalf("got %v, want a refusal", err)
			}
		}
	}
	if n := strings.Count(w.text.String(), "report refused"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}
