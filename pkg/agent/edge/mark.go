package edge

import (
	"errors"
	"io/fs"
	"os"

	"github.com/fairlead/fairlead/internal/disk"
)

// mark is the path of a file that exists while something is true, for the next agent.
type mark string

func (m mark) is() bool {
	_, err := os.Stat(string(m))
	return err == nil
}

// set creates or removes the file.
func (m mark) set(is bool) error {
	if is {
		return disk.Replace(string(m), nil)
	}
	if err := os.Remove(string(m)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
