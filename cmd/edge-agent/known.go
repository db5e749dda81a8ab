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

// knownFolder holds, in the state folder, what bootstrap files said, but for the tokens. An edge that has enrolled starts by it
// when its file is gone, is half copied or can't be read: its own key is all it needs.
const knownFolder = "bootstrap"

// bootstrapFile is what a bootstrap file and the flags say together.
type bootstrapFile struct {
	edge.BootstrapFile
	said edge.BootstrapFile // by the file alone
	gone error              // why the file itself is of no use; nil: it is
}

func (f bootstrapFile) addresses() []string { return slices.Concat(f.Gateway, f.Gateways) }

// check returns an error for one by which no edge can start.
func (f bootstrapFile) check() error {
	if err := model.TunnelDomain(f.TunnelDomain).Validate(); err != nil {
		return err
	}
	if f.ID != "" {
		if err := model.ValidateID(f.ID); err != nil {
			return err
		}
	}
	if len(f.addresses()) == 0 {
		return errors.New("there is neither --gateway nor a bootstrap file with a gateway")
	}
	_, err := endpoints("address of the gateways", f.addresses())
	return err
}

// known is what a bootstrap file said when it was last of use.
type known struct{ path string }

// knownOf is the record for a bootstrap file: one for each path, so an edge of several tunnels needs to tell nothing apart.
func knownOf(stateDir, file string) known {
	if absolute, err := filepath.Abs(file); err == nil {
		file = absolute
	}
	sum := sha256.Sum256([]byte(file))
	return known{path: filepath.Join(stateDir, knownFolder, hex.EncodeToString(sum[:8])+".yaml")}
}

// remember writes down what a file says, unless that is known.
func (k known) remember(file edge.BootstrapFile) error {
	file.Token = "" // it is a secret, and used up
	body, err := yaml.Marshal(file)
	if err != nil {
		return fmt.Errorf("remembering bootstrap file: %w", err)
	}
	data := append(seal(body), body...)
	if old, err := os.ReadFile(k.path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return fmt.Errorf("remembering bootstrap file: %w", err)
	}
	return disk.Replace(k.path, data)
}

// recall returns what the file said. A record that is damaged is none: half a CA or another id would cost the identity.
func (k known) recall() (edge.BootstrapFile, error) {
	data, err := os.ReadFile(k.path)
	if err != nil {
		return edge.BootstrapFile{}, err
	}
	head, body, _ := bytes.Cut(data, []byte("\n"))
	if !bytes.Equal(append(head, '\n'), seal(body)) {
		return edge.BootstrapFile{}, errors.New("recalling bootstrap file: the record is damaged")
	}
	return edge.ReadBootstrapFile(k.path) // the first line is a comment
}

// seal is the first line of a record: it tells whether the rest is whole.
func seal(body []byte) []byte {
	sum := sha256.Sum256(body)
	return []byte("# " + hex.EncodeToString(sum[:]) + "\n")
}
