package proxy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/internal/command"
)

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
	return command.Child(cmd.Context(), argv, append(os.Environ(), "KUBECONFIG="+file), command.Streams{
		In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(),
	})
}
