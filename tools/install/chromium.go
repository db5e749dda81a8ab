package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"
)

// chromiumPart is the name of the browser that the status page is tested in. It is no part that can be kept in a cache: it comes as
// Debian's package, with the libraries and the font that it needs.
const chromiumPart = "chromium"

const (
	updateTime  = 5 * time.Minute
	packageTime = 20 * time.Minute
)

// errNoBrowser says what somebody has to do who is not root, or not on Debian.
var errNoBrowser = errors.New("the tests of the status page need a Chromium: run this as root on Debian (apt-get install chromium fonts-inter), or install one and name it in $CHROMIUM")

// takeChromium says whether the browser is wanted, and which of the names are left.
func takeChromium(names []string) (wanted bool, rest []string) {
	if len(names) == 0 {
		return true, nil
	}
	rest = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == chromiumPart })
	return len(rest) < len(names), rest
}

// installChromium installs the browser unless there is one. Who may not install packages goes on without it where it was not asked for
// by its name: then the tests that need it say so.
func installChromium(ctx context.Context, asked bool, out io.Writer) error {
	if os.Getenv("CHROMIUM") != "" || hasChromium() {
		fmt.Fprintf(out, "%s: ready\n", chromiumPart)
		return nil
	}
	_, noApt := exec.LookPath("apt-get")
	switch {
	case (noApt != nil || os.Geteuid() != 0) && asked:
		return errNoBrowser
	case noApt != nil || os.Geteuid() != 0:
		fmt.Fprintf(out, "%s: left out: %v\n", chromiumPart, errNoBrowser)
		return nil
	}
	fmt.Fprintf(out, "%s: installing Debian's package, about 1 min\n", chromiumPart)
	if err := apt(ctx, updateTime, "update", "-qq"); err != nil {
		return err
	}
	if err := apt(ctx, packageTime, "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-inter"); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: ready\n", chromiumPart)
	return nil
}

func hasChromium() bool {
	return slices.ContainsFunc([]string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}, func(name string) bool {
		_, err := exec.LookPath(name)
		return err == nil
	})
}

func apt(ctx context.Context, most time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	said, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("it was not done within %s", most)
	}
	if err != nil {
		return fmt.Errorf("apt-get %s: %w; %w\n%s", args[0], err, errNoBrowser, said)
	}
	return nil
}
