package lab

import (
	"errors"
	"fmt"
	"os"

	"github.com/fairlead/fairlead/test/lab/proc"
)

// machineScript gives a command its own /etc and /var/lib in the folder $0, and adds our programs to its path.
const machineScript = `set -eu
cp /etc/hosts /etc/nsswitch.conf "$0/etc/"
mount --bind "$0/etc" /etc
mount --bind "$0/lib" /var/lib
PATH="$1:$2:$PATH" exec sh "$0/command"`

// RunOnMachine runs a shell command as root on a new machine in the workload network. It runs until the lab is closed.
func (l *Lab) RunOnMachine(name string, command []byte) error {
	dir := l.File(name)
	if err := errors.Join(os.MkdirAll(dir+"/etc", 0o755), os.MkdirAll(dir+"/lib", 0o755),
		os.WriteFile(dir+"/command", command, 0o600)); err != nil {
		return fmt.Errorf("making machine %s: %w", name, err)
	}
	_, err := l.supervise(proc.Spec{
		Name: name, Namespace: l.Network.Workload, Program: "unshare",
		Args: []string{"--mount", "sh", "-c", machineScript, dir, l.Parts.Fairlead, l.Parts.Real},
	})
	return err
}
