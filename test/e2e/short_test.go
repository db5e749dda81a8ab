package e2e

import "github.com/fairlead/fairlead/test/promise"

// Short names for the functions of package promise.
var (
	eventually = promise.Eventually
	never      = promise.Never
	must       = promise.Must
)

const patience = promise.Patience
