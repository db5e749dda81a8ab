package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// userData is the part of a cloud-config that this program supports.
type userData struct {
	BootCmd    []any       `json:"bootcmd"`
	WriteFiles []writeFile `json:"write_files"`
	RunCmd     []any       `json:"runcmd"`
}

type writeFile struct {
	Path        string `json:"path"`
	Content     string `json:"content"`
	Encoding    string `json:"encoding"`
	Owner       string `json:"owner"`
	Permissions string `json:"permissions"`
	Append      bool   `json:"append"`
}

// ignored are sections that Cluster API's bootstrap provider can write and that this machine ignores: its disks, clock
// and users are the host's.
var ignored = []string{"ntp", "users", "disk_setup", "fs_setup", "mounts"}

// parseUserData parses a cloud-config, which may be a Jinja template over the metadata.
func parseUserData(data []byte, metaData map[string]string) (userData, error) {
	var u userData
	text := string(data)
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimSpace(strings.ToLower(first)) == "## template: jinja" {
		var err error
		if text, err = render(rest, metaData); err != nil {
			return u, err
		}
	}
	if !strings.HasPrefix(text, "#cloud-config") {
		return u, errors.New("want a cloud-config: its first line, or the one after `## template: jinja`, is `#cloud-config`")
	}
	var sections map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &sections); err != nil {
		return u, err
	}
	known := append([]string{"bootcmd", "write_files", "runcmd"}, ignored...)
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		if !slices.Contains(known, name) {
			return u, fmt.Errorf("section %q: this machine knows only %s", name, strings.Join(known, ", "))
		}
		if slices.Contains(ignored, name) {
			delete(sections, name)
		}
	}
	kept, err := yaml.Marshal(sections)
	if err != nil {
		return u, err
	}
	if err := yaml.UnmarshalStrict(kept, &u); err != nil {
		return u, err
	}
	for _, f := range u.WriteFiles {
		if _, err := f.decode(); err != nil {
			return u, fmt.Errorf("write_files %s: %w", f.Path, err)
		}
	}
	_, err = script(append(slices.Clone(u.BootCmd), u.RunCmd...))
	return u, err
}

var (
	expression = regexp.MustCompile(`\{\{-?\s*(.*?)\s*-?\}\}`)
	metaKey    = regexp.MustCompile(`^(?:ds\.meta_data|v1)(?:\.(\w+)|\[['"](\w+)['"]\])$`)
)

// render replaces the expressions of a Jinja template that name metadata. A missing value is replaced by the same text
// as in cloud-init. Every other Jinja construct is an error.
func render(text string, metaData map[string]string) (string, error) {
	if at := strings.Index(text, "{%"); at >= 0 {
		return "", errors.New("this machine knows no Jinja statements ({% ... %}), only {{ ds.meta_data.KEY }}")
	}
	var errs []error
	text = expression.ReplaceAllStringFunc(text, func(found string) string {
		inside := expression.FindStringSubmatch(found)[1]
		key := metaKey.FindStringSubmatch(inside)
		if key == nil {
			errs = append(
				errs, fmt.Errorf("this machine knows only {{ ds.meta_data.KEY }} and {{ v1.KEY }} of Jinja, not %s", found),
			)
			return found
		}
		name := key[1] + key[2]
		// cloud-init's standard names for values whose names depend on the data source.
		if strings.HasPrefix(inside, "v1") && name == "local_hostname" {
			name = "local_hostname"
		}
		if value, ok := metaData[name]; ok {
			return value
		}
		return "CI_MISSING_JINJA_VAR/" + name
	})
	return text, errors.Join(errs...)
}

// decode returns the decoded content.
func (f writeFile) decode() ([]byte, error) {
	data := []byte(f.Content)
	switch strings.ToLower(f.Encoding) {
	case "", "text/plain":
		return data, nil
	case "b64", "base64":
		return base64.StdEncoding.DecodeString(strings.TrimSpace(f.Content))
	case "gz", "gzip":
		return gunzip(data)
	case "gz+b64", "gzip+b64", "gz+base64", "gzip+base64":
		zipped, err := base64.StdEncoding.DecodeString(strings.TrimSpace(f.Content))
		if err != nil {
			return nil, err
		}
		return gunzip(zipped)
	}
	return nil, fmt.Errorf("encoding %q is unknown", f.Encoding)
}

func gunzip(data []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// script makes one shell script of commands, like cloud-init: a string is a line of the script, a list is quoted. The
// script continues after a command that fails, and exits with the code of the last one.
func script(commands []any) (string, error) {
	text := "#!/bin/sh\n"
	for _, command := range commands {
		switch command := command.(type) {
		case string:
			text += command + "\n"
		case []any:
			var words []string
			for _, word := range command {
				words = append(words, "'"+strings.ReplaceAll(fmt.Sprint(word), "'", `'\''`)+"'")
			}
			text += strings.Join(words, " ") + "\n"
		default:
			return "", fmt.Errorf("command %v: want a string or a list", command)
		}
	}
	return text, nil
}
