package versions

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/envoy"
)

// TestEarlierVersionsAreServed proves that versions.txt lists every earlier version for which an xds-server renders
// configuration.
func TestEarlierVersionsAreServed(t *testing.T) {
	var want, got []string
	for minor := envoy.Oldest.Minor; minor < envoy.Current.Minor; minor++ {
		want = append(want, envoy.Version{Major: envoy.Current.Major, Minor: minor}.String())
	}
	for _, v := range Earlier() {
		got = append(got, v.Number)
	}
	if !slices.Equal(got, want) {
		t.Errorf("versions.txt has versions %q, want %q", got, want)
	}
}
