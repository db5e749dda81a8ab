// Package logging makes the one logger of a process from its flags, and passes it to libraries that have their own
// logging interfaces. It does not know what is logged.
package logging

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// Flags are the logging flags of every program. The zero value logs text from level info on.
type Flags struct {
	Level  string // debug, info, warn or error
	Format string // text or json
}

// AddTo adds the flags to a flag set.
func (f *Flags) AddTo(set *pflag.FlagSet) {
	set.StringVar(&f.Level, "log-level", "info", "lowest level to log: debug, info, warn or error")
	set.StringVar(&f.Format, "log-format", "text", "format of log lines: text or json")
}

// New returns the logger that the flags configure, or an error for an unknown level or format.
func (f Flags) New(out io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if f.Level != "" {
		if err := level.UnmarshalText([]byte(f.Level)); err != nil {
			return nil, fmt.Errorf("--log-level: %w", err)
		}
	}
	options := &slog.HandlerOptions{Level: level}
	switch f.Format {
	case "", "text":
		return slog.New(slog.NewTextHandler(out, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(out, options)), nil
	}
	return nil, fmt.Errorf("--log-format: %q is invalid: must be text or json", f.Format)
}
