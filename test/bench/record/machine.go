package record

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// Machine describes the machine and the versions of a run. Unknown fields are empty.
type Machine struct {
	Date     string `json:"date"` // RFC 3339
	Load     string `json:"load"` // average of the minute before the run: other load
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryMB int    `json:"memoryMB"`
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Envoy    string `json:"envoy"`
	Commit   string `json:"commit"` // with "+" if the tree had changes

	// percent of the cores' time that a hypervisor gave to other machines during the run
	Stolen float64 `json:"stolen,omitempty"`
}

// Facts reads the facts of this machine, and of the repository in the process's folder.
func Facts() Machine {
	m := Machine{Date: now(), Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: field("/proc/cpuinfo", "model name")}
	if kb, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		m.MemoryMB = kb / 1024
	}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(data), " ")
	}
	var name syscall.Utsname
	if syscall.Uname(&name) == nil {
		m.Kernel = text(name.Release[:])
	}
	root := output("git", "rev-parse", "--show-toplevel")
	m.Commit = output("git", "rev-parse", "--short=12", "HEAD")
	if m.Commit != "" && output("git", "status", "--porcelain", "--untracked-files=no") != "" {
		m.Commit += "+"
	}
	// "…  version: <commit>/1.40.0/Clean/RELEASE/BoringSSL"
	if parts := strings.Split(output(filepath.Join(root, "bin", "envoy"), "--version"), "/"); len(parts) > 2 {
		m.Envoy = parts[len(parts)-4]
	}
	return m
}

// coreTime returns the time that the cores have spent since the start of the machine, in ticks, and the part of it that
// a hypervisor gave to other machines; see proc(5).
func coreTime() (all, stolen float64) {
	const ofHost = 7 // user, nice, system, idle, iowait, irq, softirq, steal
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	first, _, _ := strings.Cut(string(data), "\n")
	for i, text := range strings.Fields(strings.TrimPrefix(first, "cpu")) {
		ticks, err := strconv.ParseFloat(text, 64)
		if err != nil || i > ofHost {
			break
		}
		all += ticks
		if i == ofHost {
			stolen = ticks
		}
	}
	return all, stolen
}

// field returns the value after the colon in the first line of a file that begins with a name.
func field(path, name string) string {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func text(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
