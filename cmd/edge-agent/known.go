package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/model"
)

// knownFolder is the folder, in the state folder, with copies of bootstrap files without their tokens. An enrolled edge
// starts with the copy when its file is gone, incomplete or unreadable, because it needs only its own key.
const knownFolder = "bootstrap"

// bootstrapFile combines a bootstrap file and the flags.
type bootstrapFile struct {
	edge.BootstrapFile
	fromFile edge.BootstrapFile // the file alone
	unusable error              // why the file cannot be used; nil: it can
}

func (f bootstrapFile) addresses() []string { return slices.Concat(f.Gateway, f.Gateways) }

// check returns an error if no edge can start with it.
func (f bootstrapFile) check() error {
	if err := model.TunnelDomain(f.TunnelDomain).Validate(); err != nil {
		return err
	}
	if f.ID != "" {
		if err := model.ValidateID(f.ID); err != nil {
			return err
		}
	}
	if err := f.CheckRole(); err != nil {
		return err
	}
	if len(f.addresses()) == 0 {
		return errors.New("no gateway: set --gateway, or give a bootstrap file that names one")
	}
	_, err := endpoints("address of the gateways", f.addresses())
	return err
}

// known is the copy of a bootstrap file when it was last valid.
type known struct{ path string }

// knownOf returns the copy of a bootstrap file. Each path has its own copy, so several tunnels of one edge do not share
// one.
func knownOf(stateDir, file string) known {
	if absolute, err := filepath.Abs(file); err == nil {
		file = absolute
	}
	sum := sha256.Sum256([]byte(file))
	return known{path: filepath.Join(stateDir, knownFolder, hex.EncodeToString(sum[:8])+".yaml")}
}

// save stores the file without its token, unless the copy is current.
func (k known) save(file edge.BootstrapFile) error {
	file.Token = "" // the token is secret, and used up
	body, err := yaml.Marshal(file)
	if err != nil {
		return fmt.Errorf("saving content of the bootstrap file: %w", err)
	}
	data := append(checksum(body), body...)
	if old, err := os.ReadFile(k.path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return fmt.Errorf("saving content of the bootstrap file: %w", err)
	}
	return disk.Replace(k.path, data)
}

// load returns the stored file. It returns an error if the copy is damaged: half a CA or a wrong id would cost the
// edge its identity.
func (k known) load() (edge.BootstrapFile, error) {
	data, err := os.ReadFile(k.path)
	if err != nil {
		return edge.BootstrapFile{}, err
	}
	head, body, _ := bytes.Cut(data, []byte("\n"))
	if !bytes.Equal(append(head, '\n'), checksum(body)) {
		return edge.BootstrapFile{}, errors.New("loading content of the last bootstrap file: the saved copy is damaged")
	}
	return edge.ReadBootstrapFile(k.path) // YAML ignores the first line, which is a comment
}

// checksum returns the first line of a copy, a checksum that proves that the rest is complete.
func checksum(body []byte) []byte {
	sum := sha256.Sum256(body)
	return []byte("# " + hex.EncodeToString(sum[:]) + "\n")
}
