package model

import (
	"cmp"
	"fmt"
	"strconv"
)

// Limits are how much one workload cluster may take of what it shares with others. Zero: a default.
type Limits struct {
	Connections int64 // that are open at the same time, through each gateway and name
	Pending     int64 // of these, that wait for a tunnel
	Bandwidth   int64 // bytes/s in each direction, of each edge for each gateway; zero: no limit
}

const (
	// DefaultConnections fill one tunnel, so that clients of one workload cluster which all stop reading pin no more of a gateway's
	// memory than one tunnel may, 1.25 GiB. Cluster API's managers need 3 to 6.
	DefaultConnections = 512
	// DefaultPending is what may come at once when an edge is back.
	DefaultPending = 256

	maxConnections = 10_000
	// minBandwidth lets an apiserver still answer, maxBandwidth is beyond any network.
	minBandwidth = 64 << 10
	maxBandwidth = 1 << 40
)

// MaxConnections is how many connections may be open.
func (l Limits) MaxConnections() uint32 { return uint32(cmp.Or(l.Connections, DefaultConnections)) }

// MaxPending is how many connections may wait.
func (l Limits) MaxPending() uint32 { return uint32(cmp.Or(l.Pending, DefaultPending)) }

// ValidateLimits returns the limits that can be kept, and an error for each of the others, which are left at their defaults.
func ValidateLimits(l Limits) (good Limits, bad []*FieldError) {
	check := func(field string, value *int64, least, most int64, what string) {
		if *value != 0 && (*value < least || *value > most) {
			bad = append(bad, &FieldError{
				Field: "spec.limits." + field, Value: strconv.FormatInt(*value, 10),
				Problem: fmt.Sprintf("is not between %d and %d %s", least, most, what), Cure: "correct it, or remove it for the default",
			})
			*value = 0
		}
	}
	good = l
	check("connections", &good.Connections, 1, maxConnections, "connections")
	check("pendingConnections", &good.Pending, 1, maxConnections, "connections")
	check("bandwidth", &good.Bandwidth, minBandwidth, maxBandwidth, "bytes in a second")
	return good, bad
}
