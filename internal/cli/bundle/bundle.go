// Package bundle is the command support-bundle: it gathers objects, logs, metrics and the output of other commands into
// one archive without secrets. It does not know what the other commands do: it gets the tree of commands and runs them.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/redact"
)

const (
	// maxPart bounds one file of a bundle, and maxBundle all of them unpacked, so that a packed bundle can be mailed.
	maxPart, maxBundle = 16 << 20, 512 << 20
	// partTime bounds gathering one part.
	partTime = 2 * time.Minute
)

// bundleFlags are the flags of support-bundle.
type bundleFlags struct {
	tree func() *cobra.Command // of all commands
	management.Flags
	management.ServersFlags
	file      string
	noChecks  bool
	noLogs    bool
	logLines  int64
	overwrite bool
}

// defaultLogLines keeps one log at about 1 MiB.
const defaultLogLines = 5000

func newFlags(root func() *cobra.Command) bundleFlags {
	return bundleFlags{tree: root, logLines: defaultLogLines}
}

// Write does what support-bundle does, for another command of the tree that root returns. It writes the file, which
// must not exist, and prints the summary to the error stream of cmd.
func Write(
	cmd *cobra.Command, root func() *cobra.Command, m management.Flags, servers management.ServersFlags, file string,
) error {
	f := newFlags(root)
	f.Flags, f.ServersFlags, f.file = m, servers, file
	return f.run(cmd, cmd.ErrOrStderr())
}

// Command returns the command. root returns the tree of commands whose output is gathered.
func Command(root func() *cobra.Command) *cobra.Command {
	f := newFlags(root)
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Collect diagnostic data, without secrets, into one file",
		Long: strings.TrimSpace(`
Collect diagnostic data into one .tar.gz file with mode 0600: versions; Clusters, Tunnels, RemoteNetworks,
Machines and the objects of Fairlead, with their events; the names of Secrets; the output of "fairlead
status", "check --all" and "config sync"; the configuration of the Envoys; logs and metrics of the Pods of
Fairlead. README.txt lists the content, and what is missing with the reason.

Keys, tokens and their hashes, passwords, certificates, kubeconfigs, values of environment variables and
foreign annotations are replaced by "[removed]". Host names, addresses and names of objects remain: review the
file before you share it.

Needs: list on Clusters, Tunnels, RemoteNetworks, Machines, Events, Secrets (metadata only) and
CertificateSigningRequests; in the namespace of the installation, list on all objects and get on pods/log and
pods/proxy. Data that needs a missing permission is left out.
Changes: creates the file; sends the requests of "fairlead check" to all workload clusters unless --no-checks
is set.
Exit codes: 0 the file was written, even if data is missing; 1 the command failed; 2 the command line is
invalid.`),
		Example: "  fairlead support-bundle\n  fairlead support-bundle -n prod --file prod.tar.gz --no-logs",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd, cmd.OutOrStdout()) },
	}
	f.Flags.AddTo(cmd.Flags())
	f.ServersFlags.AddTo(cmd)
	set := cmd.Flags()
	set.StringVarP(&f.Namespace, "namespace", "n", "", "include only Clusters of this namespace (default: all namespaces)")
	set.StringVar(&f.file, "file", "", "file to write (default: fairlead-support-<time>.tar.gz in the current folder)")
	set.BoolVar(&f.overwrite, "overwrite", false, "overwrite the file if it exists")
	set.BoolVar(&f.noChecks, "no-checks", false, "leave out `check --all`, which makes requests to all workload clusters")
	set.BoolVar(&f.noLogs, "no-logs", false, "leave out logs")
	set.Int64Var(&f.logLines, "log-lines", f.logLines, "number of lines of each log, from its end")
	return cmd
}

// bundle is the archive that is being written.
type bundle struct {
	flags    *bundleFlags
	m        *management.Client
	root     string // the top folder
	tar      *tar.Writer
	now      time.Time
	size     int64
	contents []string // one line per file
	missing  []string // what is missing, and why
	progress output.Progress
}

func (f *bundleFlags) run(cmd *cobra.Command, out io.Writer) error {
	m, err := f.Open()
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	name := "fairlead-support-" + now.Format("20060102-150405")
	if f.file == "" {
		f.file = name + ".tar.gz"
	}
	mode := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if f.overwrite {
		// the old file may have another mode
		if err := os.Remove(f.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	file, err := os.OpenFile(f.file, mode, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: use another --file, or --overwrite", f.file)
	}
	if err != nil {
		return err
	}
	packed := gzip.NewWriter(file)
	b := &bundle{flags: f, m: m, root: name, tar: tar.NewWriter(packed), now: now, progress: output.NewProgress(cmd)}
	err = b.gather(cmd.Context())
	b.progress.Done()
	if err = errors.Join(err, b.tar.Close(), packed.Close(), file.Close()); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", f.file, err), os.Remove(f.file))
	}
	_, err = fmt.Fprintf(out, "%s has %d files, without secrets", f.file, len(b.contents)+1)
	if len(b.missing) > 0 {
		_, err = fmt.Fprintf(
			out, "; %d parts are missing:\n  %s", len(b.missing), strings.Join(b.missing, "\n  "),
		)
	}
	_, _ = fmt.Fprintln(out)
	return err
}

// gather adds all parts. It returns only errors of writing; parts that cannot be gathered are listed as missing.
func (b *bundle) gather(ctx context.Context) error {
	for _, part := range []struct {
		name string
		do   func(ctx context.Context) error
	}{
		{"versions", b.versions},
		{"objects", b.objects},
		{"what fairlead status says", b.commands},
		{"configuration of Envoys", b.dumps},
		{"Pods", b.pods},
	} {
		b.progress.Update("gathering: %s …", part.name)
		if err := func() error {
			ctx, cancel := context.WithTimeout(ctx, partTime)
			defer cancel()
			return part.do(ctx)
		}(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return b.write("README.txt", []byte(b.readme()))
}

// addMissing records that something is missing.
func (b *bundle) addMissing(what string, why any) {
	b.missing = append(b.missing, output.OneLine(redact.Text(fmt.Sprintf("%s: %v", what, why))))
}

// add adds a file and its description. All content passes through here, so all of it is redacted.
func (b *bundle) add(name, what string, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	if len(text) > maxPart {
		b.addMissing(name, fmt.Sprintf("the first %d MiB of %d MiB are left out", (len(text)-maxPart)>>20+1, len(text)>>20))
		text = text[len(text)-maxPart:]
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	if b.size += int64(len(text)); b.size > maxBundle {
		b.addMissing(name, "the bundle is full")
		return nil
	}
	b.contents = append(b.contents, fmt.Sprintf("%-50s %s", name, what))
	return b.write(name, text)
}

// addText adds a text of any origin.
func (b *bundle) addText(name, what, text string) error {
	return b.add(name, what, []byte(redact.Text(text)))
}

// addData adds JSON-like data as YAML.
func (b *bundle) addData(name, what string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	out, err := yaml.Marshal(redact.Value(plain))
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return b.add(name, what, out)
}

func (b *bundle) write(name string, text []byte) error {
	header := &tar.Header{
		Name:     path.Join(b.root, name),
		Mode:     0o600,
		Size:     int64(len(text)),
		ModTime:  b.now,
		Typeflag: tar.TypeReg,
	}
	if err := b.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err := b.tar.Write(text)
	return err
}

func (b *bundle) readme() string {
	var r strings.Builder
	fmt.Fprintf(
		&r,
		"Support bundle of Fairlead, made at %s.\n\nRemoved from all files, and marked with %s: data of Secrets, keys, "+
			"certificates, tokens and their hashes,\npasswords, credentials in URLs, kubeconfigs, values of environments and "+
			"of variables of topologies, annotations\nthat are neither Fairlead's nor Cluster API's, long blobs of "+
			"base64.\n\nIn it:\n  %s\n",
		b.now.Format(time.RFC3339),
		redact.Mark,
		strings.Join(b.contents, "\n  "),
	)
	if len(b.missing) > 0 {
		fmt.Fprintf(&r, "\nNot in it:\n  %s\n", strings.Join(b.missing, "\n  "))
	}
	return r.String()
}

// ask runs another command of this program with the same flags, and returns its output. Exit code 1, for something that
// is broken, is not an error.
func (b *bundle) ask(ctx context.Context, args ...string) (string, error) {
	f := b.flags
	for flag, value := range map[string]string{"kubeconfig": f.Kubeconfig, "context": f.Context} {
		if value != "" {
			args = append(args, "--"+flag+"="+value)
		}
	}
	args = append(args, "--installation="+f.Installation)
	for _, address := range f.Addresses {
		args = append(args, "--xds-server="+address)
	}
	var out bytes.Buffer
	root := f.tree()
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(io.Discard)
	err := root.ExecuteContext(ctx)
	var coded *command.Error
	if errors.As(err, &coded) && coded.Err == nil {
		err = nil
	}
	return out.String(), err
}
