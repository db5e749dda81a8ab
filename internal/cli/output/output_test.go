package output

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/logtest"
)

// openTerminal returns both ends of a pseudo-terminal of a given size. What is written to program can be read from
// screen.
func openTerminal(t *testing.T, columns, rows uint16) (screen, program *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatalf("no pseudo-terminals here: %v", err)
		}
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	return screen, program
}

// reads collects what a terminal shows.
func reads(screen *os.File) *logtest.Journal {
	s := &logtest.Journal{}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := screen.Read(buffer)
			_, _ = s.Write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	return s
}

func fruit(counts ...int) View {
	t := &Table{Columns: Columns("FRUIT", "COUNT", "AGE~", "COLOUR+")}
	for i, n := range counts {
		t.Add(
			fmt.Sprint("apple-", i), n, Plain(fmt.Sprint("apple-", i)), Styled(StyleGood, fmt.Sprint(n)), Plain("5m"),
			Plain("red"),
		)
	}
	return View{Data: counts, Table: t, Empty: "no fruit"}
}

func TestOutputForms(t *testing.T) {
	for name, tc := range map[string]struct {
		form string
		v    View
		want string
	}{
		"a table": {
			formTable, fruit(1, 200), "FRUIT     COUNT   AGE\napple-0   1       5m\napple-1   200     5m\n",
		},
		"a wide one":          {formWide, fruit(1), "FRUIT     COUNT   AGE   COLOUR\napple-0   1       5m    red\n"},
		"nothing to be shown": {formTable, fruit(), "no fruit\n"},
		"JSON":                {FormJSON, fruit(1, 2), "[\n  1,\n  2\n]\n"},
		"YAML":                {formYAML, fruit(1, 2), "- 1\n- 2\n"},
		"a line above a table": {formTable, View{Summary: []Line{{Plain("all "), Styled(StyleBad, "bad")}}, Table: fruit(
			1).Table}, "all bad\n\nFRUIT     COUNT   AGE\napple-0   1       5m\n"},
		"what steers a terminal": {
			formTable,
			View{Page: func(p *Page) { p.Field("Host", Plain("a\x1b[2Jb\u202ec\x00")); p.Heading("More") }},
			"Host:            a?[2Jb?c?\n\nMore\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			cmd := &cobra.Command{}
			cmd.SetOut(&out)
			o := Options{Form: tc.form}
			if err := o.Print(cmd, tc.v); err != nil || out.String() != tc.want {
				t.Errorf("%v, got\n%s\nwant\n%s", err, out.String(), tc.want)
			}
		})
	}
}

func TestColoursAreOnlyForTerminals(t *testing.T) {
	screen, program := openTerminal(t, 80, 24)
	seen := reads(screen)
	t.Setenv("TERM", "xterm")
	show := func(mark string) {
		t.Helper()
		cmd := &cobra.Command{}
		cmd.SetOut(program)
		o := Options{Form: formTable}
		v := fruit(1)
		v.Summary = []Line{{Plain(mark)}}
		if err := o.Print(cmd, v); err != nil {
			t.Fatal(err)
		}
		kubetest.Eventually(t, "it is on the screen", func() error {
			if !strings.Contains(seen.String(), mark) || !strings.HasSuffix(seen.String(), "5m\r\n") {
				return errors.New("it shows " + seen.String())
			}
			return nil
		})
	}
	show("with colours")
	if !strings.Contains(seen.String(), "\x1b[32m1\x1b[0m") {
		t.Errorf("no colours: %q", seen.String())
	}
	t.Setenv("NO_COLOR", "1")
	show("without")
	if _, after, _ := strings.Cut(seen.String(), "without"); strings.Contains(after, "\x1b") {
		t.Errorf("colours in spite of NO_COLOR: %q", after)
	}
}

// TestWatchRedraws checks that a table that is larger than the terminal is redrawn in place.
func TestWatchRedraws(t *testing.T) {
	screen, program := openTerminal(t, 20, 6)
	seen := reads(screen)
	t.Setenv("TERM", "xterm")
	ctx, stop := context.WithCancel(t.Context())
	cmd := &cobra.Command{}
	cmd.SetOut(program)
	cmd.SetContext(ctx)
	o, counts := Options{Form: formTable, Watch: true}, make(chan int, 1)
	counts <- 1
	ended := make(chan error, 1)
	go func() {
		n := 0
		ended <- o.Show(cmd, func(context.Context) (View, error) {
			select {
			case n = <-counts:
			default:
			}
			return fruit(n, 2, 3, 4, 5, 6, 7, 8), nil
		}, func(ctx context.Context, changed func()) error {
			<-ctx.Done()
			return nil
		})
	}()
	shows := func(text string) {
		t.Helper()
		kubetest.Eventually(t, "it is drawn", func() error {
			if !strings.Contains(seen.String(), text) {
				return errors.New("it shows " + seen.String())
			}
			return nil
		})
	}
	shows("5 more lines")
	counts <- 42 // a redraw for the ages, without any change, shows this too
	shows("42")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if strings.Count(seen.String(), "\x1b[2J") != 1 || strings.Count(seen.String(), "\x1b[H") < 2 {
		t.Errorf("drawn otherwise: %q", seen.String())
	}
	for l := range strings.SplitSeq(seen.String(), "\r\n") {
		if text := escapes.ReplaceAllString(l, ""); len([]rune(text)) > 20 {
			t.Errorf("%q is wider than the terminal", text)
		}
	}
}

// escapes are sequences that control a terminal.
var escapes = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)
