package server

import (
	"crypto/x509"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/pkg/certs"
)

func TestRenewalRate(t *testing.T) {
	tests := map[string]struct {
		life    time.Duration
		every   time.Duration // between renewals
		want    int           // of 1,000 that are not limited
		exactly bool
	}{
		"leaves of 24 h, at two thirds":          {life: 24 * time.Hour, every: 16 * time.Hour, want: 1000, exactly: true},
		"leaves of 24 h, requested each minute":  {life: 24 * time.Hour, every: time.Minute, want: 230},
		"leaves of 24 h, requested continuously": {life: 24 * time.Hour, every: time.Millisecond, want: 30, exactly: true},
		"leaves of 6 s, at two thirds": {
			life:    6 * time.Second,
			every:   4 * time.Second,
			want:    1000,
			exactly: true,
		},
		"leaves of 1 s, as often as an agent does": {life: time.Second, every: time.Second, want: 1000, exactly: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rates, passed := limit.NewRates(8), 0
				for range 1000 {
					begin := time.Now()
					leaf := &x509.Certificate{NotBefore: begin.Add(-certs.ClockSkew), NotAfter: begin.Add(tc.life)}
					if rates.Take("edge-a", renewalRate(leaf)) == 0 {
						passed++
					}
					time.Sleep(tc.every)
				}
				if tc.exactly && passed != tc.want || passed > tc.want+10 || passed < tc.want-10 {
					t.Errorf("%d were not limited, want %d", passed, tc.want)
				}
			})
		})
	}
}
