package server_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// ReportToken implements enrolserver.ReportTokens.
func (m *management) ReportToken(hash string) (enrol.Grant, error) {
	if hash != enrol.HashToken(m.report) {
		return enrol.Grant{}, enrol.ErrUnknownToken
	}
	return enrol.Grant{Tunnel: tunnel, ID: id}, nil
}

// Boot implements enrolserver.Boots.
func (m *management) Boot(id string, r *reportv1.BootReport) (bool, error) {
	if r.GetState() == 0 {
		return false, status.Error(codes.InvalidArgument, "the report has no state")
	}
	m.set(func() { m.boots = append(m.boots, id+" "+r.GetStep()) })
	return true, nil
}

func bootOf(host, step string) *reportv1.BootReport {
	return &reportv1.BootReport{
		State:   reportv1.BootState_BOOT_STATE_RUNNING,
		Step:    step,
		Machine: &reportv1.Machine{Hostname: host},
	}
}

func TestAMachineReportsByItsToken(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	answer, err := client.ReportBoot(t.Context(), m.report, bootOf("h", "s"))
	if err != nil || !answer.Watched || answer.Next < time.Second {
		t.Errorf("got %+v and %v", answer, err)
	}
	ended := bootOf("h", "end")
	ended.State = reportv1.BootState_BOOT_STATE_FAILED
	last, err := client.ReportBoot(t.Context(), m.report, ended)
	if err != nil || last.Next <= answer.Next {
		t.Errorf("after the end it is to wait for %s: %v", last.Next, err)
	}
	if got := strings.Join(m.boots, ","); got != id+" s,"+id+" end" {
		t.Errorf("taken: %s", got)
	}
	if m.log.Count("machine reported the end of its boot") != 1 {
		t.Error("its end is not logged")
	}
	if _, err := client.ReportBoot(t.Context(), m.report, &reportv1.BootReport{}); !errors.Is(err, certs.ErrRefused) {
		t.Errorf("a report without anything: %v", err)
	}
	large := bootOf("h", "s")
	large.Tail = strings.Repeat("x", 33<<10)
	if _, err := client.ReportBoot(t.Context(), m.report, large); err == nil {
		t.Error("a message of 33 KiB is taken from somebody without a certificate")
	}
}

func TestNoTokenHasTwoPurposes(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	for _, token := range []string{m.edge, m.gate, "", "flr1.", "flr1." + strings.Repeat("a", 500)} {
		if _, err := client.ReportBoot(t.Context(), token, bootOf("h", "s")); !errors.Is(err, certs.ErrRefused) {
			t.Errorf("reporting by %.8q: %v", token, err)
		}
	}
	if err := enrolEdge(t, client, m.report); !errors.Is(err, certs.ErrRefused) {
		t.Errorf("enrolling an edge by a token for reports: %v", err)
	}
	if err := enrolGateway(t, client, "gateway-0", enrolclient.GatewayCredential{Token: m.report}); !errors.Is(
		err, certs.ErrRefused,
	) {
		t.Errorf("enrolling a gateway by one: %v", err)
	}
	if len(m.boots) > 0 || m.log.Count(m.edge) > 0 || m.log.Count(m.report) > 0 {
		t.Errorf("taken: %v, or a token is in the log", m.boots)
	}
}

// TestTheReportsOfOneMachineAreRateLimited shows that one machine's rate limit does not affect another machine.
func TestTheReportsOfOneMachineAreRateLimited(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	var limit *enrolclient.LimitError
	taken := 0
	for ; taken < 200 && limit == nil; taken++ {
		if _, err := client.ReportBoot(t.Context(), m.report, bootOf("flood", "s")); err != nil && !errors.As(err, &limit) {
			t.Fatal(err)
		}
	}
	if limit == nil || limit.RetryAfter() <= 0 || limit.RetryAfter() > 5*time.Second || taken > 100 {
		t.Errorf("after %d reports: %v", taken, limit)
	}
	if _, err := client.ReportBoot(t.Context(), m.report, bootOf("another", "s")); err != nil {
		t.Errorf("another machine: %v", err)
	}
	for i := range 1000 {
		if _, err := client.ReportBoot(t.Context(), "flr1."+strings.Repeat("b", 52), bootOf("thief", "s")); errors.As(
			err, &limit,
		) {
			return
		} else if i == 999 {
			t.Errorf("made-up tokens are looked for without end: %v", err)
		}
	}
}

// TestOneTokenCannotFillTheLog invents machines that fail.
func TestOneTokenCannotFillTheLog(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	var limit *enrolclient.LimitError
	for i := range 300 {
		r := bootOf("made-up-"+strconv.Itoa(i), "s")
		r.State = reportv1.BootState_BOOT_STATE_FAILED
		if _, err := client.ReportBoot(t.Context(), m.report, r); err != nil && !errors.As(err, &limit) {
			t.Fatal(err)
		}
	}
	if n := m.log.Count("machine reported the end of its boot"); n == 0 || n > 100 {
		t.Errorf("%d lines", n)
	}
}
