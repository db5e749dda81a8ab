package gateway

import (
	"testing"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// TestARecordIsNoLongerThanALine checks that the table accepts the longest record of Envoy.
func TestARecordIsNoLongerThanALine(t *testing.T) {
	if envoy.MaxRecord > tunnels.MaxLine {
		t.Errorf("a record may have %d bytes, a line that is read %d", envoy.MaxRecord, tunnels.MaxLine)
	}
}
