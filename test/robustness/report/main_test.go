package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHistoriesAreCheckedByTheRulesOfToday(t *testing.T) {
	good := `{"at":0,"kind":"run","settle":60000000000}
{"at":1,"kind":"denied","client":"edge-1","name":"edge-2"}
{"at":2,"kind":"expect","cluster":"paris","answer":"paris#1","up":true}
{"at":3,"kind":"ask","id":1,"client":"final","cluster":"paris","bound":6000000000}
{"at":4,"kind":"answer","id":1,"answer":"paris#1"}
{"at":5,"kind":"finish"}
`
	for name, tt := range map[string]struct {
		content string
		code    int
		out     string
	}{
		"nothing is wrong":                {good, 0, ""},
		"another workload cluster":        {strings.Replace(good, `"answer":"paris#1"}`, `"answer":"oslo#1"}`, 1), 1, "oslo#1"},
		"a file that is no history":       {"{", 1, ""},
		"a history that has no end":       {strings.Replace(good, `{"at":5,"kind":"finish"}`+"\n", "", 1), 1, "no end"},
		"a history in which nothing ends": {strings.Replace(good, `"id":1,"answer"`, `"id":2,"answer"`, 1), 1, "without an end"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "history.jsonl")
			if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs strings.Builder
			code := run([]string{"--history", file}, &out, &errs)
			if code != tt.code || !strings.Contains(out.String(), tt.out) {
				t.Errorf("code %d, want %d: %s%s", code, tt.code, out.String(), errs.String())
			}
		})
	}
}
