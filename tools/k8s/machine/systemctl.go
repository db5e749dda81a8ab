package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// builtIn are services that are part of this program. They run as long as the machine.
var builtIn = []string{"kubelet", "containerd", "crio", "systemd-resolved", "cloud-init", "cloud-final"}

// systemctl answers commands of kubeadm and of user data about services of the machine.
func systemctl(args []string, out, errOut io.Writer) int {
	var words []string
	for _, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			words = append(words, arg)
		}
	}
	if len(words) == 0 {
		fmt.Fprintln(errOut, "systemctl: want a verb")
		return 1
	}
	verb, units := words[0], words[1:]
	for i := range units {
		units[i] = strings.TrimSuffix(units[i], ".service")
		if !slices.Contains(builtIn, units[i]) {
			fmt.Fprintf(errOut, "Unit %s.service not found.\n", units[i])
			return 5
		}
	}
	switch verb {
	case "daemon-reload", "start", "stop", "restart", "reload", "enable", "disable", "mask", "unmask":
		// This kubelet does by itself what these commands would do.
	case "is-active":
		fmt.Fprintln(out, "active")
	case "is-enabled":
		fmt.Fprintln(out, "enabled")
	case "status":
		for _, unit := range units {
			fmt.Fprintf(out, "%s.service\n     Loaded: loaded\n     Active: active (running)\n", unit)
		}
	default:
		fmt.Fprintf(errOut, "systemctl: this machine knows no verb %q\n", verb)
		return 1
	}
	return 0
}
