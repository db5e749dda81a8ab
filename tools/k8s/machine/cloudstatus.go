package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// cloudStatus is the content of /var/lib/cloud/data/status.json, with the fields of cloud-init 23.4 and later.
type cloudStatus struct {
	datasource string
	stages     map[string]*stageStatus
	current    *string
}

type stageStatus struct {
	Errors            []string            `json:"errors"`
	Finished          *float64            `json:"finished"`
	RecoverableErrors map[string][]string `json:"recoverable_errors"`
	Start             *float64            `json:"start"`
}

// A moduleError is the error of a module of cloud-init.
type moduleError struct {
	module string
	err    error
}

func (e *moduleError) Error() string { return fmt.Sprintf("module %s: %v", e.module, e.err) }

// failed adds the name of the module to an error, if it is not nil.
func failed(module string, err error) error {
	if err == nil {
		return nil
	}
	return &moduleError{module: module, err: err}
}

func newCloudStatus() *cloudStatus {
	s := &cloudStatus{datasource: "DataSourceNoCloud [seed=" + ownDir + "][dsmode=net]", stages: map[string]*stageStatus{}}
	for _, name := range []string{"init-local", "init", "modules-config", "modules-final"} {
		s.stages[name] = &stageStatus{Errors: []string{}, RecoverableErrors: map[string][]string{}}
	}
	return s
}

// stage runs one stage and records its result.
func (s *cloudStatus) stage(name string, do func() error) {
	stage := s.stages[name]
	stage.Start = seconds()
	s.current = &name
	s.write()
	logOutput("running '" + strings.Replace(name, "modules-", "modules:", 1) + "'")
	err := do()
	for _, e := range flatten(err) {
		var m *moduleError
		if !errors.As(e, &m) {
			m = &moduleError{module: name, err: e}
		}
		stage.Errors = append(stage.Errors, fmt.Sprintf("('%s', RuntimeError('%v'))", m.module, m.err))
		warning := "Failed to run module " + m.module
		stage.RecoverableErrors["WARNING"] = append(stage.RecoverableErrors["WARNING"], warning)
		logCloud("WARNING", fmt.Sprintf("%s: %v", warning, m.err))
	}
	stage.Finished = seconds()
	s.current = nil
	s.write()
}

// flatten splits joined errors, except joined errors of one module.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	//nolint:errorlint // only errors that are joined at the top level
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// finish writes the result, and marks the boot as finished.
func (s *cloudStatus) finish() error {
	found := []string{}
	for _, name := range []string{"init-local", "init", "modules-config", "modules-final"} {
		found = append(found, s.stages[name].Errors...)
	}
	result := map[string]any{"v1": map[string]any{"datasource": s.datasource, "errors": found}}
	logOutput("finished")
	done := fmt.Sprintf("%s - %s - machine\n", uptime(), time.Now().UTC().Format(time.RFC1123Z))
	err := errors.Join(writeJSON(cloudDir+"/data/result.json", result),
		os.WriteFile(cloudDir+"/instance/boot-finished", []byte(done), 0o644))
	if err == nil && len(found) > 0 {
		return fmt.Errorf("%v", found)
	}
	return err
}

// write replaces status.json. An error is only logged: programs that wait for the file then notice that it is missing.
func (s *cloudStatus) write() {
	v1 := map[string]any{"datasource": s.datasource, "stage": s.current}
	for name, stage := range s.stages {
		v1[name] = stage
	}
	if err := writeJSON(cloudDir+"/data/status.json", map[string]any{"v1": v1}); err != nil {
		logCloud("ERROR", err.Error())
	}
}

func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return err
	}
	return replaceFile(path, append(data, '\n'), 0o644)
}

// replaceFile writes a file under a temporary name and renames it, so that readers never see half of it.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(temporary, data, mode); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

func seconds() *float64 {
	now := float64(time.Now().UnixNano()) / 1e9
	return &now
}

func uptime() string {
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return "0"
	}
	var up string
	_, _ = fmt.Sscan(string(data), &up)
	return up
}
