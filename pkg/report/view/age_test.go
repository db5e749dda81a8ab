package view

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/report"
)

func TestAge(t *testing.T) {
	for name, tc := range map[string]struct {
		steps string
		at    int // s
		want  time.Duration
	}{
		"there is no server":                      {at: 10},
		"a server is followed":                    {steps: whole, at: 100},
		"a server was never followed":             {steps: "2 list a", at: 10, want: 8 * time.Second},
		"one has not sent everything":             {steps: whole + "2 list a b\n 3 b began", at: 10, want: 8 * time.Second},
		"a server is lost":                        {steps: whole + "5 a lost", at: 10, want: 5 * time.Second},
		"it is back, and has not sent everything": {steps: whole + "5 a lost\n 8 a began", at: 10, want: 5 * time.Second},
		"it is followed again":                    {steps: whole + "5 a lost\n 8 a began\n 9 a synced", at: 10},
		"a lost server is no longer in DNS":       {steps: whole + "5 a lost\n 8 list b\n 8 b began\n 9 b synced", at: 10},
		"its state no longer counts": {
			steps: whole + "2 list a b\n 2 b began\n 3 b synced\n 20 a lost\n 81 tick", at: 100, want: 80 * time.Second,
		},
		"its next stream ends before it has sent everything": {
			steps: whole + "2 list a b\n 2 b began\n 3 b synced\n 20 a lost\n 81 tick\n 90 a began\n 95 a lost", at: 100,
			want: 80 * time.Second,
		},
	} {
		f := newFleet(report.DefaultTimes)
		script{t, f}.run(tc.steps)
		if got := f.age(start.Add(time.Duration(tc.at) * time.Second)); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}
