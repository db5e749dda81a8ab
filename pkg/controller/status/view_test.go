package status

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/model"
)

func TestAllXDSServersBehindANameAreFound(t *testing.T) {
	lookup := func(_ context.Context, host string) ([]string, error) {
		if host != "xds.example.com" {
			return nil, errors.New("no such host")
		}
		return []string{"10.0.0.1", "fd00::1"}, nil
	}
	got, err := addresses(model.Endpoint{Host: "xds.example.com", Port: 18000}, lookup)(t.Context())
	if err != nil || !slices.Equal(got, []string{"10.0.0.1:18000", "[fd00::1]:18000"}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := addresses(model.Endpoint{Host: "other.example.com", Port: 18000}, lookup)(t.Context()); err == nil {
		t.Error("a name that is not there")
	}
}
