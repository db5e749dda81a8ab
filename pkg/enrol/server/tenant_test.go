package server_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
)

// TestTheCertificatesOfOneTunnelAreBounded lets one tunnel use one token after the other, and one leaf after the
// other.
func TestTheCertificatesOfOneTunnelAreBounded(t *testing.T) {
	tests := map[string]struct {
		burst int
		every time.Duration // between two that are served beyond the burst
		try   func(t *testing.T, m *management, client enrolclient.Client, i int) error
	}{
		"by tokens": {
			burst: 512, every: 2 * time.Second,
			try: func(t *testing.T, m *management, client enrolclient.Client, i int) error {
				t.Helper()
				if i%50 == 0 { // each token has its own limit
					token, err := enrol.RandomToken()
					if err != nil {
						t.Fatal(err)
					}
					m.set(func() { m.edge = token })
				}
				return enrolEdge(t, client, m.edge)
			},
		},
		"by leaves": {
			burst: 1000, every: (time.Hour + time.Minute - certs.ClockSkew) / 300 / 100, // 300 for each of 100 edges
			try: func(t *testing.T, m *management, client enrolclient.Client, i int) error {
				t.Helper()
				_, _, err := client.Renew(t.Context(), m.identity(fmt.Sprintf("edge-%d", i/20), domain.TunnelID(id)))
				return err
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := newManagement(t)
			client := m.serve()
			served, others, began := 0, 0, time.Now()
			for i := 0; i < 4*tc.burst && others < 5; i++ {
				var limit *enrolclient.LimitError
				switch err := tc.try(t, m, client, i); {
				case err == nil:
					served++
				case errors.As(err, &limit):
					others++
				default:
					t.Fatalf("number %d: %v", i, err)
				}
			}
			// On a slow machine more are served meanwhile.
			most := tc.burst + int(time.Since(began)/tc.every) + tc.burst/20
			if served < tc.burst || served > most || others == 0 {
				t.Errorf("%d of %d were served, want %d to %d", served, served+others, tc.burst, most)
			}
		})
	}
}
