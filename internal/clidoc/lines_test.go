package clidoc

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// program returns a program with one command, which takes one argument and one flag.
func program() *cobra.Command {
	none := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{Use: "fairlead", Args: cobra.NoArgs, RunE: none}
	sub := &cobra.Command{Use: "join CLUSTER", Args: cobra.ExactArgs(1), RunE: none}
	sub.Flags().StringP("namespace", "n", "", "where")
	root.AddCommand(sub)
	return root
}

func TestCommandLinesOfDocuments(t *testing.T) {
	for text, want := range map[string]string{
		"```\nfairlead join -n prod c1 | sh\n```\n":                             "",
		"```sh\nA=b kubectl fairlead join \\\n  --namespace=x c1 # well\n```\n": "",
		"```console\n$ bin/fairlead join c1 >file\n```\n":                       "",
		"```sh\nfairlead join c1 c2\n```\n":                                     "accepts 1 arg",
		"```sh\nfairlead joyn c1\n```\n":                                        "has no command joyn",
		"```sh\nfairlead join c1 --bogus\n```\n":                                "unknown flag: --bogus",
		"Say `fairlead join`.":                                                  "",
		"Say `fairlead join --bogus`.":                                          "unknown flag",
		"Say `fairlead leave`.":                                                 "has no command leave",
	} {
		lines := linesOf(text)
		if len(lines) != 1 {
			t.Errorf("%q: %d lines", text, len(lines))
			continue
		}
		args, whole, ok := argumentsOf("fairlead", lines[0])
		if !ok {
			t.Errorf("%q: no command line", text)
			continue
		}
		err := parse(program(), args, whole && lines[0].block)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{
		"```yaml\nfairlead joyn\n```\n", "`fairlead`", "`fairlead-ca`", "fairlead joyn",
		"```\nfairlead ──▶ edge\n```\n", "```\nfairlead ██ 2\n```\n",
	} {
		for _, l := range linesOf(text) {
			if args, _, ok := argumentsOf("fairlead", l); ok {
				t.Errorf("%q was taken for a command with %q", text, args)
			}
		}
	}
}
