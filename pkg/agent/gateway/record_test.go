package gateway

import (
	"testing"

	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/tunnels/logfile"
)

// TestARecordIsNoLongerThanALine checks that the table accepts the longest record of Envoy.
func TestARecordIsNoLongerThanALine(t *testing.T) {
	if record.MaxSize > logfile.MaxLine {
		t.Errorf("a record may have %d bytes, a line that is read %d", record.MaxSize, logfile.MaxLine)
	}
}
