package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"
)

// chromiumPart is the browser that tests the status page. It is not kept in the cache: it is installed as Debian's
// package, with the libraries and the font that it needs.
const chromiumPart = "chromium"

const (
	updateTime  = 5 * time.Minute
	packageTime = 20 * time.Minute
)

// errNoBrowser reports that the browser cannot be installed without root, or on another system than Debian.
var errNoBrowser = errors.New("the tests of the status page need a Chromium: run this as root on Debian " +
	"(apt-get install chromium fonts-inter), or install one and name it in $CHROMIUM")

// browserWish states whether a run installs the browser.
type browserWish int

const (
	noBrowser browserWish = iota
	browserIfPossible
	browserRequired
)

// takeChromium returns whether the browser is requested, and the other names, with sets expanded. A set requests the
// browser if it can be installed. A run that names the browser itself fails if it cannot.
func takeChromium(names []string) (browserWish, []string) {
	if len(names) == 0 {
		return browserIfPossible, nil
	}
	expanded := expand(names)
	rest := slices.DeleteFunc(slices.Clone(expanded), func(name string) bool { return name == chromiumPart })
	switch {
	case slices.Contains(names, chromiumPart):
		return browserRequired, rest
	case len(rest) < len(expanded):
		return browserIfPossible, rest
	}
	return noBrowser, rest
}

// canInstall reports whether this process may install Debian's packages.
func canInstall() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil && os.Geteuid() == 0
}

// planChromium returns the steps to install the browser, or a note that explains why it is skipped.
func planChromium(wish browserWish) (steps []step, note string, err error) {
	switch {
	case wish == noBrowser:
		return nil, "", nil
	case os.Getenv("CHROMIUM") != "" || hasChromium():
		return nil, "on this machine: " + chromiumPart, nil
	case canInstall():
		return []step{
			{title: "installing Debian's package " + chromiumPart, cost: 2 * time.Minute, run: installChromium},
		}, "", nil
	case wish == browserRequired:
		return nil, "", errNoBrowser
	}
	return nil, "left out: " + chromiumPart + ": " + errNoBrowser.Error(), nil
}

func installChromium(ctx context.Context, _ report) error {
	if err := apt(ctx, updateTime, "update", "-qq"); err != nil {
		return err
	}
	return apt(ctx, packageTime, "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-inter")
}

func hasChromium() bool {
	return slices.ContainsFunc(
		[]string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"},
		func(name string) bool {
			_, err := exec.LookPath(name)
			return err == nil
		},
	)
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
