package enrol_test

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/enrol"
)

func TestRandomTokensDiffer(t *testing.T) {
	a, err := enrol.RandomToken()
	if err != nil {
		t.Fatal(err)
	}
	b, err := enrol.RandomToken()
	if err != nil {
		t.Fatal(err)
	}
	if a == b || len(a) != 56 || !strings.HasPrefix(a, "fl1.") || enrol.HashToken(a) == enrol.HashToken(b) ||
		len(enrol.HashToken(a)) != 64 {
		t.Errorf("lengths %d and %d", len(a), len(enrol.HashToken(a)))
	}
}
