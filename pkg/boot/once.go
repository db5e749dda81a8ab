package boot

import (
	"fmt"
	"os"

	"github.com/fairlead/fairlead/internal/redact"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Failed returns the report of a failed step, with the end of the log at path. With an empty path it has no log. It
// returns an error if the log does not exist.
func Failed(step, path string) (*reportv1.BootReport, error) {
	r := &reportv1.BootReport{State: reportv1.BootState_BOOT_STATE_FAILED, Step: line(step)}
	if path == "" {
		return r, nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("reading log of %s: %w", r.Step, err)
	}
	r.Tail = report.CleanTail(redact.Text(string(reader{root: "/"}.end(path))), report.MaxBootTail)
	return r, nil
}

// Succeeded returns the report of a successful boot.
func Succeeded() *reportv1.BootReport {
	return &reportv1.BootReport{State: reportv1.BootState_BOOT_STATE_SUCCEEDED, Step: "bootstrapped"}
}
