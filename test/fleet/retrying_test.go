package fleet

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// startRetrying starts clients of some members, which send requests by both routes until the test ends. client-go
// pauses longer and makes more attempts.
func startRetrying(t *testing.T, how traffic.Retry, members ...*world.Member) *traffic.Retrying {
	t.Helper()
	how.Pause = 100 * time.Millisecond
	var paths []traffic.Path
	for _, m := range members {
		paths = append(paths, m.Path(0, false), m.Path(0, true))
	}
	return traffic.StartRetrying(t, how, replicasRate, "/whoami", paths...)
}
