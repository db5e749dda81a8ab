package e2e

import "github.com/fairlead/fairlead/test/promise"

// What every test here says, in short.
var (
	eventually = promise.Eventually
	never      = promise.Never
	must       = promise.Must
)

const patience = promise.Patience
