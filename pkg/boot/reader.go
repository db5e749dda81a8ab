package boot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/internal/addresses"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Paths on a machine.
const (
	// written after kubeadm by CABPK's configuration of cloud-init and Ignition
	sentinelPath = "run/cluster-api/bootstrap-success.complete"
	// a link that exists once cloud-init has started in this boot
	cloudStatusPath = "run/cloud-init/status.json"
	cloudLogPath    = "var/log/cloud-init-output.log"
	// a link to the folder of this instance, and the mark in it that cloud-init writes once, before it runs the commands
	// of the bootstrap config
	cloudInstancePath = "var/lib/cloud/instance"
	commandsMark      = "sem/config_scripts_user" // of an instance of cloud-init, as the next one
	commandsScript    = "scripts/runcmd"

	ignitionPath    = "etc/kubeadm.sh" // written by Ignition with CABPK, for kubeadm.service
	kubeletConfPath = "etc/kubernetes/kubelet.conf"
	kubeletArgsPath = "var/lib/kubelet/kubeadm-flags.env"
)

const (
	// maxLog bounds how much of the end of a log is read: kubeadm with -v=5 writes about 100 KiB.
	maxLog = 256 << 10
	// maxFile bounds every other file.
	maxFile = 64 << 10
	// journalTime bounds a query of the journal.
	journalTime = 5 * time.Second
)

// reader reads files below a root. It never fails: an unreadable file counts as not existing yet.
type reader struct{ root string }

func (r reader) path(name string) string { return filepath.Join(r.root, name) }

func (r reader) exists(name string) bool {
	_, err := os.Stat(r.path(name))
	return err == nil
}

// read returns the beginning of a file, or nil if it cannot be read.
func (r reader) read(name string) []byte {
	file, err := os.Open(r.path(name))
	if err != nil {
		return nil
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return nil
	}
	return data
}

func (r reader) word(name string) string { return strings.TrimSpace(string(r.read(name))) }

// end returns the end of a file, from the beginning of a line, or nil if it cannot be read.
func (r reader) end(name string) []byte {
	file, err := os.Open(r.path(name))
	if err != nil {
		return nil
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	from := max(0, size-maxLog)
	data := make([]byte, size-from)
	n, err := file.ReadAt(data, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	data = data[:n]
	if i := bytes.IndexByte(data, '\n'); from > 0 && i >= 0 {
		data = data[i+1:]
	}
	return data
}

var idFormat = regexp.MustCompile(`^[0-9A-Fa-f-]{16,64}$`)

// id reads a file with an id. It returns "" for other content, such as "uninitialized" from firmware or an image.
func (r reader) id(name string) string {
	if id := r.word(name); idFormat.MatchString(id) {
		return strings.ToLower(id)
	}
	return ""
}

// log returns the output of the boot: that of cloud-init or, if Ignition runs kubeadm as a unit of systemd, the unit's
// journal.
func (r reader) log(ctx context.Context) string {
	if text := r.end(cloudLogPath); text != nil {
		return string(text)
	}
	if r.root != "/" || !r.exists(ignitionPath) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, journalTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "journalctl", "--boot", "--unit=kubeadm.service", "--output=cat", "--lines=1000",
		"--no-pager").
		Output()
	if err != nil {
		return ""
	}
	return string(out[max(0, len(out)-maxLog):])
}

// bootID returns the kernel's id of this boot.
func (r reader) bootID() string { return r.word("proc/sys/kernel/random/boot_id") }

// uptime returns the time since this boot began, in milliseconds. Clock adjustments do not change it.
func (r reader) uptime() uint64 {
	first, _, _ := strings.Cut(r.word("proc/uptime"), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil || seconds < 0 {
		return 0
	}
	return uint64(seconds * 1000)
}

// bootTime returns when this boot began, or zero if this is unknown.
func (r reader) bootTime() time.Time {
	for line := range strings.Lines(string(r.read("proc/stat"))) {
		if text, ok := strings.CutPrefix(line, "btime "); ok {
			if seconds, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
				return time.Unix(seconds, 0)
			}
		}
	}
	return time.Time{}
}

// bootstrappedBefore reports whether this machine became a Node in an earlier boot, so that this boot does not
// bootstrap.
func (r reader) bootstrappedBefore() bool {
	info, err := os.Stat(r.path(kubeletConfPath))
	began := r.bootTime()
	return err == nil && !began.IsZero() && info.ModTime().Before(began)
}

// commandsRanBefore reports whether cloud-init has run the commands of the bootstrap config in an earlier boot, and so
// does not run them in this one. The time of the boot follows the clock when that is set, and the mark does not: in the
// first boot of a machine whose clock was wrong, the mark may be older than the boot, but not than cloud-init's start.
func (r reader) commandsRanBefore(cloud *cloudInit) bool {
	info, err := os.Stat(r.path(filepath.Join(r.instance(), commandsMark)))
	began := r.bootTime()
	if err != nil || began.IsZero() || !info.ModTime().Before(began) {
		return false
	}
	return cloud == nil || cloud.began().IsZero() || info.ModTime().Before(cloud.began())
}

// commandsRunKubeadm reports whether the commands of the bootstrap config, which cloud-init keeps as a script, run
// kubeadm. Its result is known: a Node has a kubelet.conf.
func (r reader) commandsRunKubeadm() bool {
	return bytes.Contains(r.end(filepath.Join(r.instance(), commandsScript)), []byte("kubeadm "))
}

// instance returns the folder of this machine's instance of cloud-init.
func (r reader) instance() string {
	if to, err := os.Readlink(r.path(cloudInstancePath)); err == nil && filepath.IsAbs(to) {
		return to
	}
	return cloudInstancePath
}

var providerFlag = regexp.MustCompile(`--provider-id=([^\s"']+)`)

// machine returns the identifiers of this machine.
func (r *Reporter) machine() *reportv1.Machine {
	m := &reportv1.Machine{
		Name: r.Machine, ProviderId: r.ProviderID, SystemUuid: r.reader.id("sys/class/dmi/id/product_uuid"),
		MachineId: r.reader.id("etc/machine-id"),
	}
	if m.ProviderId == "" {
		if found := providerFlag.FindSubmatch(r.reader.read(kubeletArgsPath)); found != nil {
			m.ProviderId = string(found[1])
		}
	}
	if m.Hostname, _ = os.Hostname(); m.Hostname == "" {
		m.Hostname = "localhost"
	}
	m.Addresses = addresses.OfMachine()
	return m
}
