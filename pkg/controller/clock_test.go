package controller

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/fairlead/fairlead/internal/kubetest"
)

func TestAdjust(t *testing.T) {
	date := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC) // of an answer that was written at 9:00:00.4
	written := date.Add(400 * time.Millisecond)
	tests := map[string]struct {
		ours time.Duration // how far our clock is ahead of the apiserver's
		have time.Duration
		want time.Duration
	}{
		"a clock that is right":                {want: 0},
		"one that is right to the second":      {ours: 300 * time.Millisecond, want: 0},
		"one that is 10 min ahead":             {ours: 10 * time.Minute, want: -10*time.Minute + 590*time.Millisecond},
		"one that is 10 min late":              {ours: -10 * time.Minute, want: 10*time.Minute - 410*time.Millisecond},
		"one that is known to be 10 min ahead": {ours: 10 * time.Minute, have: -10 * time.Minute, want: -10 * time.Minute},
		"one that was set right":               {have: -10 * time.Minute, want: -410 * time.Millisecond},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ours := written.Add(tc.ours)
			got := adjust(tc.have, ours.Add(-10*time.Millisecond), ours.Add(10*time.Millisecond), date)
			if diff := got - tc.want; diff.Abs() > 30*time.Millisecond {
				t.Errorf("offset %s, want %s", got, tc.want)
			}
			if wrong := (tc.ours + got).Abs(); wrong > time.Second {
				t.Errorf("the time is wrong by %s", wrong)
			}
		})
	}
}

// TestTheClockFollowsTheAPIServer queries a real apiserver with a clock that is 10 minutes wrong.
func TestTheClockFollowsTheAPIServer(t *testing.T) {
	config := server.Config(t)
	clock := &Clock{offset: 10 * time.Minute}
	config.Wrap(clock.Wrap)
	api, err := kubetest.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.List(t.Context(), &certificatesv1.CertificateSigningRequestList{}); err != nil {
		t.Fatal(err)
	}
	if wrong := time.Until(clock.Now()).Abs(); wrong > 2*time.Second { // both have the clock of this machine
		t.Errorf("the clock is wrong by %s", wrong)
	}
}

// TestACorrectionOfThisClockIsNoStep: a clock that is 10 minutes late is set right, and the next answer makes the
// offset zero. By their monotonic readings, which have no such step, the time after that would be 10 minutes earlier.
func TestACorrectionOfThisClockIsNoStep(t *testing.T) {
	late := &Clock{offset: 10 * time.Minute}
	if now := late.Now().String(); strings.Contains(now, "m=") {
		t.Errorf("%s has a monotonic reading", now)
	}
}

type broken struct{}

// RoundTrip always fails.
func (broken) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("broken") }

func TestTheClockContinuesWithoutAnswers(t *testing.T) {
	clock := &Clock{}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if response, err := clock.Wrap(broken{}).RoundTrip(request); err == nil {
		response.Body.Close()
		t.Error("an error was lost")
	}
	clock.observe(time.Now(), time.Now(), "yesterday")
	if wrong := time.Until(clock.Now()).Abs(); wrong > time.Second {
		t.Errorf("wrong by %s", wrong)
	}
}
