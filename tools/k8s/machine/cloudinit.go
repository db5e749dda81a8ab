package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	cloudDir    = "/var/lib/cloud"
	cloudLog    = "/var/log/cloud-init.log"
	cloudOutput = "/var/log/cloud-init-output.log"
)

// cloudInit processes user data like cloud-init at a boot of an instance. After the first boot it runs only bootcmd. If
// a stage has errors, the next stage still runs.
func cloudInit(ctx context.Context, c config) error {
	data, err := os.ReadFile(userDataFile)
	if err != nil {
		return err
	}
	u, err := parseUserData(data, c.MetaData)
	if err != nil {
		return err
	}
	instance := filepath.Join(cloudDir, "instances", c.MetaData["instance_id"])
	first := !exists(filepath.Join(instance, "boot-finished"))
	if err := prepareInstance(instance, data); err != nil {
		return err
	}
	status := newCloudStatus()
	status.stage("init-local", func() error { return nil })
	status.stage("init", func() error {
		err := failed("bootcmd", runScript(ctx, filepath.Join(instance, "scripts", "bootcmd"), u.BootCmd))
		if first {
			err = errors.Join(err, failed("write_files", writeFiles(u.WriteFiles)))
		}
		return err
	})
	status.stage("modules-config", func() error { return nil })
	status.stage("modules-final", func() error {
		if !first {
			return nil
		}
		err := runScript(ctx, filepath.Join(instance, "scripts", "runcmd"), u.RunCmd)
		if err == nil {
			return nil
		}
		slog.Info("runcmd has failed", "error", err)
		return failed("scripts_user", errors.New("Runparts: 1 failures (runcmd) in 1 attempted commands"))
	})
	if ctx.Err() != nil {
		return ctx.Err() // switched off: the next boot starts again
	}
	return status.finish()
}

// prepareInstance creates the folders of cloud-init.
func prepareInstance(instance string, userData []byte) error {
	for _, dir := range []string{cloudDir + "/data", instance + "/scripts", "/run/cloud-init"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Remove(cloudDir + "/data/result.json"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(
		link(instance, cloudDir+"/instance"), link("../../var/lib/cloud/data/status.json", "/run/cloud-init/status.json"),
		link("../../var/lib/cloud/data/result.json", "/run/cloud-init/result.json"),
		os.WriteFile(instance+"/user-data.txt", userData, 0o600),
	)
}

func link(to, path string) error {
	if err := os.Symlink(to, path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// runScript runs commands as one shell script. Its output goes to cloud-init's output log.
func runScript(ctx context.Context, path string, commands []any) error {
	if len(commands) == 0 {
		return nil
	}
	text, err := script(commands)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(cloudOutput, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"PATH=" + systemPath, "LANG=C.UTF-8"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out // a file, so that background processes do not keep the script from ending
	return cmd.Run()
}

func writeFiles(files []writeFile) error {
	var errs []error
	for _, f := range files {
		if err := f.write(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Path, err))
		}
	}
	return errors.Join(errs...)
}

func (f writeFile) write() error {
	data, err := f.decode()
	if err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if f.Permissions != "" {
		bits, err := strconv.ParseUint(f.Permissions, 8, 32)
		if err != nil {
			return fmt.Errorf("permissions: %w", err)
		}
		mode = os.FileMode(bits)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if f.Append {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	file, err := os.OpenFile(f.Path, flags, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Close(), os.Chmod(f.Path, mode)); err != nil {
		return err
	}
	return chown(f.Path, f.Owner)
}

// chown sets an owner of the form user, user:group or :group, with names of the machine.
func chown(path, owner string) error {
	if owner == "" {
		return nil
	}
	name, group, _ := strings.Cut(owner, ":")
	uid, gid := -1, -1
	if name != "" {
		u, err := user.Lookup(name)
		if err != nil {
			return err
		}
		uid, _ = strconv.Atoi(u.Uid)
	}
	if group != "" {
		g, err := user.LookupGroup(group)
		if err != nil {
			return err
		}
		gid, _ = strconv.Atoi(g.Gid)
	}
	return os.Chown(path, uid, gid)
}

// logOutput writes a line to the output log, as cloud-init does at the beginning of each stage and at the end.
func logOutput(text string) {
	out, err := os.OpenFile(cloudOutput, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return
	}
	defer out.Close()
	_, _ = fmt.Fprintf(
		out, "Cloud-init v. 25.1 %s at %s. Up %s seconds.\n", text, time.Now().UTC().Format(time.RFC1123Z), uptime(),
	)
}

// logCloud writes a line to cloud-init's own log.
func logCloud(level, text string) {
	f, err := os.OpenFile(cloudLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = fmt.Fprintf(f, "%s - machine[%s]: %s\n", time.Now().UTC().Format("2006-01-02 15:04:05,000"), level, text)
}
