package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildFaulty builds one of our programs with a mistake: it replaces a text, which must occur once, in one file of the
// repository. It returns the program's path.
func (w *Workspace) BuildFaulty(ctx context.Context, program, file, text, mistake string) (string, error) {
	original := filepath.Join(w.Parts.Root, file)
	data, err := os.ReadFile(original)
	if err != nil {
		return "", fmt.Errorf("reading what is to have a mistake: %w", err)
	}
	if strings.Count(string(data), text) != 1 {
		return "", fmt.Errorf("%s has not %q once", file, text)
	}
	dir := w.File("faulty-" + program)
	changed, overlay := filepath.Join(dir, "changed.go.txt"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", fmt.Errorf("writing overlay: %w", err)
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(overlay, replace, 0o644),
		os.WriteFile(changed, []byte(strings.Replace(string(data), text, mistake, 1)), 0o644)); err != nil {
		return "", fmt.Errorf("writing overlay: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", filepath.Join(dir, program),
		"./cmd/"+program)
	cmd.Dir = w.Parts.Root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s with a mistake: %w\n%s", program, err, out)
	}
	return filepath.Join(dir, program), nil
}
