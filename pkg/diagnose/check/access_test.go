package check

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"
)

// TestTheEndOfACheckDoesNotBreakAWatch ends the time for a check while its watch opens, and while it is open.
func TestTheEndOfACheckDoesNotBreakAWatch(t *testing.T) {
	for sentence, opens := range map[string]bool{"before it is open": false, "before its time is over": true} {
		t.Run(sentence, func(t *testing.T) {
			s := newSituation(t)
			s.watch = 10 * time.Minute
			watched(func(w http.ResponseWriter, r *http.Request) {
				if got := r.URL.Query().Get("timeoutSeconds"); got != "660" {
					t.Errorf("the apiserver shall end the watch after %s s, want a minute more than 600", got)
				}
				if !opens {
					s.end()
				}
				_ = http.NewResponseController(w).Flush()
				time.AfterFunc(200*time.Millisecond, s.end) // the client has read the head of the answer by then
				<-r.Context().Done()
			})(s)
			report := s.check(t)
			at := slices.IndexFunc(report.Hops, func(r Result) bool { return r.ID == HopWatch })
			watch := report.Hops[at]
			expected{Unknown, "the time for the check ended"}.compare(t, finding{
				watch.Status, watch.Detail, watch.Cause, watch.Cure,
			})
		})
	}
}

// TestTheLimitOfTheWatchFollowsItsTime: otherwise a watch of 15 s or more would always count as cut.
func TestTheLimitOfTheWatchFollowsItsTime(t *testing.T) {
	v := &visit{Checker: &Checker{Watch: time.Hour}}
	v.defaults()
	for _, hop := range Hops() {
		hop.look = func(ctx context.Context, _ *visit) finding {
			end, _ := ctx.Deadline()
			if left := time.Until(end); (left > time.Hour) != (hop.ID == HopWatch) {
				t.Errorf("hop %s has %s", hop.ID, left)
			}
			return finding{}
		}
		v.visit(t.Context(), hop)
	}
}
