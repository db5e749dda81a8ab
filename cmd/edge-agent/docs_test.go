package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/clidoc"
)

// TestDocumentsSayWhatTheCodeSays: the reference of flags, and every command line in the documents.
func TestDocumentsSayWhatTheCodeSays(t *testing.T) {
	clidoc.Check(t, func() *cobra.Command { return rootCommand(nil) })
}
