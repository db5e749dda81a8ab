package admission

import (
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// Sources returns how many sources have a bucket.
func (c *Control) Sources() int { return len(c.sources.keys) }

// Stream is the decision about a new connection that is no reverse tunnel.
func (c *Control) Stream(now time.Time, node model.EdgeRef) Reason { return c.stream(now, node) }
