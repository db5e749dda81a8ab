package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead/fairlead/pkg/dial"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Answer is the server's answer to an accepted boot report.
type Answer struct {
	Next    time.Duration // how long to wait until the next report, if nothing changes
	Watched bool          // a controller currently receives the reports
}

// ReportBoot sends a boot report. Like the other calls it tries once.
func (c Client) ReportBoot(ctx context.Context, token string, report *reportv1.BootReport) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, maxAttempt)
	defer cancel()
	conn, err := dial.Conn(c.Dialer, c.Domain, c.Trust, nil)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	answer, err := enrolv1.NewEnrolmentClient(conn).
		ReportBoot(ctx, &enrolv1.ReportBootRequest{Token: token, Report: report})
	if err != nil {
		err = reason(err)
		var limited *LimitError
		if errors.As(err, &limited) {
			return Answer{}, limited
		}
		return Answer{}, fmt.Errorf("reporting how the machine boots: %w", err)
	}
	return Answer{Next: answer.GetNext().AsDuration(), Watched: answer.GetWatched()}, nil
}
