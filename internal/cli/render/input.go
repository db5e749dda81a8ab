package render

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/source"
)

const (
	// maxInput bounds one file. It fits 100,000 Clusters as YAML.
	maxInput = 512 << 20
	// validateTime bounds one validation by an Envoy, which takes a tenth of a second.
	validateTime = 30 * time.Second
)

// readInputs reads files and folders, and standard input for "-".
func readInputs(paths []string, stdin io.Reader) (all []source.Input, err error) {
	for _, path := range paths {
		if path == "-" {
			data, err := io.ReadAll(io.LimitReader(stdin, maxInput))
			if err != nil {
				return nil, fmt.Errorf("reading the standard input: %w", err)
			}
			all = append(all, source.Input{Name: "standard input", Data: data})
			continue
		}
		files, err := filesOf(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			all = append(all, source.Input{Name: file, Data: data})
		}
	}
	return all, nil
}

// filesOf returns the files of a folder and its subfolders, or the one file.
func filesOf(path string) (all []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	err = filepath.WalkDir(path, func(at string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(at)) {
			all = append(all, at)
		}
		return err
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no .yaml, .yml or .json file in %s", path)
	}
	return all, err
}

// validateAll validates each configuration with an Envoy.
func (f renderFlags) validateAll(cmd *cobra.Command, all []rendered) error {
	program, err := exec.LookPath(f.envoy)
	if err != nil {
		return fmt.Errorf("--envoy: %w: give the path of an Envoy, as the edge's image has it in /usr/local/bin", err)
	}
	if program, err = filepath.Abs(program); err != nil {
		return fmt.Errorf("--envoy: %w", err)
	}
	dir, err := os.MkdirTemp("", "fairlead-render-")
	if err != nil {
		return fmt.Errorf("creating folder for configurations: %w", err)
	}
	defer os.RemoveAll(dir)
	progress, p, refused := output.NewProgress(cmd), output.NewPage(cmd.OutOrStdout(), false), 0
	for i, r := range all {
		progress.Update("%d of %d: %s", i+1, len(all), r.of)
		said, err := validateOne(cmd.Context(), program, dir, r.text)
		progress.Done()
		switch {
		case err == nil:
			p.Line(output.Plain(r.of+": "), output.Styled(output.StyleGood, "accepted"))
		case said == "": // Envoy could not be run
			return err
		default:
			refused++
			p.Line(output.Plain(r.of+": "), output.Styled(output.StyleBad, "refused: "), output.Plain(said))
		}
	}
	if refused > 0 {
		return errors.Join(p.Err, output.Broken())
	}
	return p.Err
}

// validateOne returns Envoy's objections to a configuration.
func validateOne(ctx context.Context, program, dir string, text []byte) (said string, err error) {
	file := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, validateTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--mode", "validate", "-c", file, "-l", "error")
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		return "", fmt.Errorf("running %s: %w", program, errors.Join(err, ctx.Err()))
	}
	if err != nil {
		said = strings.TrimSpace(strings.ReplaceAll(out.String(), dir+"/", ""))
		if said == "" {
			said = "no output: " + exit.Error()
		}
	}
	return said, err
}
