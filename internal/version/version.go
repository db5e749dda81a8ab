// Package version holds the version of the program that it is linked into. It has no input.
package version

import "runtime/debug"

// Get returns what the Go toolchain stamped into the binary: the module's version, or the commit from which it was
// built.
func Get() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (version == "(devel)" || version == "") {
			version = s.Value
		}
	}
	return version
}
