package boot

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// cloudStages are the stages of cloud-init, in order. The commands of a bootstrap config run in the last one.
var cloudStages = []string{"init-local", "init", "modules-config", "modules-final"}

// cloudInit is the progress of cloud-init, from its status.json. Its format has not changed since version 0.7, except
// for recoverable_errors.
type cloudInit struct {
	stages map[string]cloudStage
	stage  string // the running stage; empty: none
}

type cloudStage struct {
	Start    *float64 `json:"start"`    // Unix time
	Finished *float64 `json:"finished"` // null: still running
	Errors   []string `json:"errors"`
}

// parseCloudInit parses status.json. It returns nil if the file is invalid or incomplete.
func parseCloudInit(data []byte) *cloudInit {
	var file struct {
		V1 map[string]json.RawMessage `json:"v1"`
	}
	if json.Unmarshal(data, &file) != nil || file.V1 == nil {
		return nil
	}
	c := &cloudInit{stages: map[string]cloudStage{}}
	for _, name := range cloudStages {
		var s cloudStage
		if raw, ok := file.V1[name]; ok && json.Unmarshal(raw, &s) == nil {
			c.stages[name] = s
		}
	}
	if raw, ok := file.V1["stage"]; ok {
		var stage *string
		if json.Unmarshal(raw, &stage) == nil && stage != nil {
			c.stage = *stage
		}
	}
	return c
}

// ended reports whether all stages have run.
func (c *cloudInit) ended() bool { return c.stage == "" && c.stages["modules-final"].Finished != nil }

// began returns when cloud-init has started in this boot, or zero if this is unknown.
func (c *cloudInit) began() time.Time {
	for _, name := range cloudStages {
		if start := unix(c.stages[name].Start); start != nil {
			return start.AsTime()
		}
	}
	return time.Time{}
}

// errors returns the errors of all stages, and the first stage with an error.
func (c *cloudInit) errors() (stage string, all []string) {
	for _, name := range cloudStages {
		if errs := c.stages[name].Errors; len(errs) > 0 {
			if stage == "" {
				stage = name
			}
			all = append(all, errs...)
		}
	}
	return stage, all
}

// current returns the running stage, or else the next one.
func (c *cloudInit) current() string {
	if slices.Contains(cloudStages, c.stage) {
		return c.stage
	}
	for _, name := range cloudStages {
		if c.stages[name].Finished == nil {
			return name
		}
	}
	return cloudStages[len(cloudStages)-1]
}

func (c *cloudInit) phases() []*reportv1.BootPhase {
	var all []*reportv1.BootPhase
	for _, name := range cloudStages {
		s := c.stages[name]
		if s.Start == nil {
			continue
		}
		p := &reportv1.BootPhase{
			Name:    "cloud-init " + name,
			State:   reportv1.BootState_BOOT_STATE_RUNNING,
			Started: unix(s.Start),
			Ended:   unix(s.Finished),
		}
		switch {
		case len(s.Errors) > 0:
			p.State = reportv1.BootState_BOOT_STATE_FAILED
		case s.Finished != nil:
			p.State = reportv1.BootState_BOOT_STATE_SUCCEEDED
		}
		all = append(all, p)
	}
	return all
}

func unix(seconds *float64) *timestamppb.Timestamp {
	if seconds == nil || math.IsNaN(*seconds) || *seconds <= 0 || *seconds > math.MaxInt32*100 {
		return nil
	}
	whole, part := math.Modf(*seconds)
	return timestamppb.New(time.Unix(int64(whole), int64(part*1e9)))
}

// thisBoot returns the part of cloud-init's output from its latest run: the file grows from boot to boot.
func thisBoot(log string) string {
	i := strings.LastIndex(log, " running 'init-local' at ")
	if i < 0 {
		return log // the log is long, and does not reach back to the beginning of this boot
	}
	return log[strings.LastIndexByte(log[:i], '\n')+1:]
}
