package cli

import (
	"testing"

	"github.com/fairlead/fairlead/internal/clidoc"
)

// TestDocumentsSayWhatTheCodeSays: the reference of flags, and every command line in the documents.
func TestDocumentsSayWhatTheCodeSays(t *testing.T) { clidoc.Check(t, newRoot) }
