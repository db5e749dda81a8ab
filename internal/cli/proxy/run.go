package proxy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// killTime is how long a command may take to end after SIGTERM.
const killTime = 10 * time.Second

// runWith runs a command with a kubeconfig in KUBECONFIG, and returns its exit code. The kubeconfig contains a key: it
// is a file with mode 0600 in a new folder with mode 0700, which is removed at the end.
func runWith(cmd *cobra.Command, config *clientcmdapi.Config, argv []string) (code int, err error) {
	dir, err := os.MkdirTemp("", "fairlead-")
	if err != nil {
		return 0, fmt.Errorf("creating a folder for the kubeconfig: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "kubeconfig")
	text, err := clientcmd.Write(*config)
	if err != nil {
		return 0, fmt.Errorf("writing kubeconfig: %w", err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return 0, fmt.Errorf("writing kubeconfig: %w", err)
	}
	child := exec.CommandContext(cmd.Context(), argv[0], argv[1:]...)
	child.Env = append(os.Environ(), "KUBECONFIG="+file)
	child.Stdin, child.Stdout, child.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.WaitDelay = killTime
	err = child.Run()
	if exited := (*exec.ExitError)(nil); errors.As(err, &exited) {
		if code := exited.ExitCode(); code > 0 {
			return code, nil
		}
		return 1, nil // a signal ended it
	}
	if err != nil {
		return 0, fmt.Errorf("running %s: %w", argv[0], err)
	}
	return 0, nil
}
