package issuers

import (
	"os"
	"testing"

	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

func TestMain(m *testing.M) { os.Exit(controllertest.Run(m)) }
