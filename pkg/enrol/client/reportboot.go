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

// Answer is what the server says to a boot report that it has taken.
type Answer struct {
	Next    time.Duration // how long to wait with the next one, unless something is new
	Watched bool          // a controller hears of it now
}

// ReportBoot sends a boot report. Like the other calls it tries once.
func (c Client) ReportBoot(ctx context.Context, token string, report *reportv1.BootReport) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, maxAttempt)
	defer cancel()
	conn, err := dial.Conn(c.Way, c.Domain, c.Trust, nil)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	answer, err := enrolv1.NewEnrolmentClient(conn).ReportBoot(ctx, &enrolv1.ReportBootRequest{Token: token, Report: report})
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
