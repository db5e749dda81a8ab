package collect

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestRejectionsAreBoundedAndCurrent(t *testing.T) {
	var r Refusals
	begin := time.Unix(1_800_000_000, 0)
	for i := range 10 * maxRefusals { // a client with many addresses
		r.Note(begin, fmt.Sprintf("[2001:db8::%x]:4711", i), AboutHandshake, errors.New("remote error: tls: bad certificate"))
	}
	for i := range 100 { // an agent that retries again and again
		r.Note(
			begin.Add(time.Duration(i)*time.Second), fmt.Sprintf("192.0.2.1:%d", 1000+i), AboutEnrolment,
			errors.New("the token\x1b[2J is unknown"+strings.Repeat("x", 10*maxReason)),
		)
	}
	now := begin.Add(2 * time.Minute)
	all := r.messages(now)
	if len(all) != maxRefusals {
		t.Fatalf("%d machines are remembered, want %d", len(all), maxRefusals)
	}
	last := all[len(all)-1]
	if last.GetAddress() != "192.0.2.1" || last.GetTimes() != 100 || len(last.GetReason()) > maxReason ||
		strings.Contains(last.GetReason(), "\x1b") {
		t.Errorf("got %v", last)
	}
	if all := r.messages(begin.Add(refusalTime + 30*time.Second)); len(all) != 1 || all[0].GetAddress() != "192.0.2.1" {
		t.Errorf("after a while it still tells %d", len(all))
	}
	if all := (*Refusals)(nil).messages(now); all != nil {
		t.Errorf("nobody remembers %v", all)
	}
}
