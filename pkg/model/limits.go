package model

import (
	"cmp"
	"fmt"
	"strconv"
)

// Limits are the shared resources that one workload cluster may use. Zero values stand for defaults.
type Limits struct {
	Connections int64 // maximum number of open connections through each gateway and name
	Pending     int64 // maximum number of these that wait for a reverse tunnel
	Bandwidth   int64 // bytes/s in each direction, of each edge for each gateway; zero: unlimited
}

const (
	// DefaultConnections fill one reverse tunnel: if all clients of one workload cluster stop reading, they hold at
	// most the memory of a gateway that one reverse tunnel may use, 1.25 GiB. Cluster API's managers need 3 to 6.
	DefaultConnections = 512
	// DefaultPending is the number of connections that may arrive at once when an edge reconnects.
	DefaultPending = 256

	maxConnections = 10_000
	// minBandwidth still lets an apiserver answer; maxBandwidth exceeds any network.
	minBandwidth = 64 << 10
	maxBandwidth = 1 << 40
)

// MaxConnections returns how many connections may be open.
func (l Limits) MaxConnections() uint32 { return uint32(cmp.Or(l.Connections, DefaultConnections)) }

// MaxPending returns how many connections may wait.
func (l Limits) MaxPending() uint32 { return uint32(cmp.Or(l.Pending, DefaultPending)) }

// Forwarded returns the limits of a network's machines that reach their apiserver through the reverse tunnels of its
// Cluster. These are not the network's own: it may have at most as many connections as those reverse tunnels carry that
// an edge of the Cluster keeps for one name to one worker of a gateway. Otherwise the others had none.
func (l Limits) Forwarded() Limits {
	l.Connections = min(int64(l.MaxConnections()), TunnelsPerWorker*DefaultConnections)
	return l
}

// ValidateLimits returns the valid limits, and an error for each invalid one, which is set to its default.
func ValidateLimits(l Limits) (good Limits, bad []*FieldError) {
	check := func(field string, value *int64, least, most int64, what string) {
		if *value != 0 && (*value < least || *value > most) {
			bad = append(bad, &FieldError{
				Field: "spec.limits." + field, Value: strconv.FormatInt(*value, 10),
				Problem: fmt.Sprintf(
					"is not between %d and %d %s", least, most, what,
				), Cure: "correct it, or remove it for the default",
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
