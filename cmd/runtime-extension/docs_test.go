package main

import (
	"testing"

	"github.com/fairlead/fairlead/internal/clidoc"
)

// TestDocumentsMatchTheCommandLine checks the reference of the flags, and every command line in the documents.
func TestDocumentsMatchTheCommandLine(t *testing.T) { clidoc.Check(t, rootCommand) }
