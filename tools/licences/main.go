// Command licences lists the modules that are linked into the product's programs, with their versions and licences. It
// fails if a licence is unknown, or not permitted in an Apache-2.0 program. It is a separate module, so that its
// dependencies do not become the product's.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/google/licensecheck"
)

// allowed holds the SPDX identifiers of licences that require only a notice.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// leastCoverage is how much of a licence file, in percent, must be licence text. The rest is names and years.
const leastCoverage = 75

// licenceFile matches the names of licence files.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([.-].*)?$`)

// module is the output of go list for one module.
type module struct {
	Path, Version, Dir string
	Main               bool
}

// row is a module with its licences.
type row struct {
	module   module
	licences []string
	problem  error
}

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// run lists the modules of the packages in a folder: the first argument is the folder, the others are packages.
func run(out io.Writer, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: licences FOLDER PACKAGES...")
	}
	modules, goVersion, err := list(args[0], args[1:])
	if err != nil {
		return err
	}
	rows := make([]row, 0, len(modules))
	for _, m := range modules {
		licences, err := licencesOf(m.Dir)
		rows = append(rows, row{m, licences, err})
	}
	return write(out, goVersion, rows)
}

// list returns the modules of packages and of everything that they import, as they are built for Linux.
func list(folder string, packages []string) (modules []module, goVersion string, err error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Module,Standard"}, packages...)...)
	cmd.Dir, cmd.Stderr = folder, os.Stderr
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOFLAGS=-mod=readonly -buildvcs=false")
	out, err := cmd.Output()
	if err != nil {
		return nil, "", fmt.Errorf("listing modules: %w", err)
	}
	seen := map[string]bool{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p struct{ Module *module }
		if err := decoder.Decode(&p); err != nil {
			return nil, "", fmt.Errorf("reading the list of modules: %w", err)
		}
		if p.Module != nil && !p.Module.Main && !seen[p.Module.Path] {
			seen[p.Module.Path] = true
			modules = append(modules, *p.Module)
		}
	}
	if len(modules) == 0 {
		return nil, "", errors.New("listing modules: there is none")
	}
	slices.SortFunc(modules, func(a, b module) int { return cmp.Compare(a.Path, b.Path) })
	version := exec.Command("go", "env", "GOVERSION")
	version.Dir = folder
	text, err := version.Output()
	return modules, strings.TrimSpace(string(text)), err
}

// licencesOf reads the licence files of a module. The error explains why they are not sufficient.
func licencesOf(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("looking for its licence: %w", err)
	}
	var all []string
	var errs []error
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading its licence: %w", err)
		}
		found, err := classify(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.Name(), err))
		}
		all = append(all, found...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) == 0 && len(errs) == 0 {
		return nil, errors.New("it has no licence file")
	}
	return all, errors.Join(errs...)
}

// classify returns the licences in a text.
func classify(text []byte) ([]string, error) {
	coverage := licensecheck.Scan(text)
	var found []string
	for _, m := range coverage.Match {
		if !m.IsURL {
			found = append(found, m.ID)
		}
	}
	slices.Sort(found)
	found = slices.Compact(found)
	if len(found) == 0 || coverage.Percent < leastCoverage {
		return found, fmt.Errorf("the licence is unknown: %.0f %% of the text is that of %v", coverage.Percent, found)
	}
	for _, id := range found {
		if !slices.Contains(allowed, id) {
			return found, fmt.Errorf("the licence %s is not one of %s", id, strings.Join(allowed, ", "))
		}
	}
	return found, nil
}

// write prints the table, and returns an error if a row has a problem.
func write(out io.Writer, goVersion string, rows []row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODULE\tVERSION\tLICENCE")
	fmt.Fprintf(w, "the Go standard library\t%s\tBSD-3-Clause\n", goVersion)
	var errs []error
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.module.Path, r.module.Version, cmp.Or(strings.Join(r.licences, " and "), "UNKNOWN"))
		if r.problem != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", r.module.Path, r.module.Version, r.problem))
		}
	}
	return errors.Join(w.Flush(), errors.Join(errs...))
}
