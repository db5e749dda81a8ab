package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/clidoc"
)

// TestDocumentsMatchTheCommandLine checks the reference of the flags, and every command line in the documents.
func TestDocumentsMatchTheCommandLine(t *testing.T) {
	clidoc.Check(t, func() *cobra.Command { return rootCommand(nil) })
}
