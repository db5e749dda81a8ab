package rollout

import "time"

const (
	// smallest is the size of a fleet with few nodes. Other sizes are its multiples by powers of two: each change gives
	// edges lanes or takes some from them, and that ends the connections in these.
	smallest = 100
	// shrinkAfter is how long a fleet must be small before its size is halved, so that edges which are away for a while
	// do not have others dial lanes that have to go when they return.
	shrinkAfter = 10 * time.Minute
)

// SizeOf returns the smallest Record.Size for a number of connected nodes.
func SizeOf(nodes int) int {
	size := smallest
	for size < nodes {
		size *= 2
	}
	return size
}

// size returns Record.Size of the next record: at once enough for all connected nodes, and half of the previous one
// when less than 40 % of it were connected for shrinkAfter.
func (d *Decider) size(in Input, now time.Time) int {
	is := 0
	if in.Record != nil {
		is = in.Record.Size
	}
	if !in.Known || in.Total == 0 {
		d.small = time.Time{}
		return is
	}
	needs := SizeOf(in.Total)
	if needs >= is || in.Total*5 >= is*2 {
		d.small = time.Time{}
		return max(needs, is)
	}
	if d.small.IsZero() {
		d.small = now
	}
	if now.Sub(d.small) < shrinkAfter {
		return is
	}
	return is / 2
}
