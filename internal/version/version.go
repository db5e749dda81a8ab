// Package version holds the version of the program that it is linked into: its release, its commit, and the release of
// Envoy that it runs with. The linker sets the first two, or the Go toolchain records them in the binary. It does not
// know the protocol between programs.
//
// The release vX.Y.Z and the protocol version of the agents, envoy.Current in pkg/envoy, are related. Envoy.Current is
// X.Y: an agent sends it, and an xds-server renders resources for it and for the two minor versions before it. So
// programs of two patch releases always work together, and a rollout in waves follows a change of X.Y, not of Z.
// tools/images rejects a release whose X.Y differs from envoy.Current.
package version

import (
	"log/slog"
	"runtime"
	"runtime/debug"
)

// Envoy is the release of Envoy with which this version is tested, and which the images contain. A test compares it
// with deploy/envoy/requirements.txt.
const Envoy = "1.40.0"

// unknown stands for a version or a commit that neither the linker nor the toolchain has recorded.
const unknown = "unknown"

// The linker sets them: go build -ldflags "-X github.com/fairlead/fairlead/internal/version.release=v0.1.0". Empty: the
// Go toolchain's records are used.
var release, commit string

// Get returns the release, such as v0.1.0. In a build without one it returns the version of the module that the Go
// toolchain recorded, or the commit, or "(devel)" if it recorded neither.
func Get() string {
	info, ok := debug.ReadBuildInfo()
	switch {
	case release != "":
		return release
	case !ok:
		return unknown
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	case revision(info) != "":
		return revision(info)
	}
	return "(devel)"
}

// Commit returns the full hash of the commit of which the program was built, with "-dirty" after it if files had
// changed, or "unknown".
func Commit() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok && revision(info) != "" {
		return revision(info)
	}
	return unknown
}

// revision returns the commit that the Go toolchain recorded; empty: none.
func revision(info *debug.BuildInfo) string {
	var hash, changed string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			hash = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "-dirty"
		}
	}
	if hash == "" {
		return ""
	}
	return hash + changed
}

// Line describes the build on one line: release, commit, Envoy and Go.
func Line() string {
	return Get() + ", commit " + Commit() + ", Envoy " + Envoy + ", " + runtime.Version()
}

// Attr describes the build for the first log line of a program.
func Attr() slog.Attr {
	return slog.Group("build", "version", Get(), "commit", Commit(), "envoy", Envoy)
}
