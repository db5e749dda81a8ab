package main

import (
	"os"
	"runtime/debug"
)

// garbage is how much garbage there may be before it is collected, in percent of what is in use. Half of Go's default saves 3 KB of 80 KB for each
// edge (7 % of the heap), and costs a sixth more processor time while 1,000 edges come at once.
const garbage = 50

// tuneMemory sets that, unless the environment says otherwise.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}
