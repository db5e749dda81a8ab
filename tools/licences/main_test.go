package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const mit = `MIT License

Copyright (c) 2020 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
`

const commons = `This work is made available under the terms of the Example Private Source Licence. You may look at the source
and may not run it. All other rights are reserved by the owner of the work, who may change these terms at any time.
`

const agplHeader = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU Affero General
Public License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.

This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even the implied warranty of
MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU Affero General Public License for more details.

You should have received a copy of the GNU Affero General Public License along with this program. If not, see <https://www.gnu.org/licenses/>.
`

func TestLicencesOf(t *testing.T) {
	tests := map[string]struct {
		files map[string]string
		want  string
		fails string
	}{
		"a known one":           {map[string]string{"LICENSE": mit, "NOTICE": "x", "licenser.go": "x"}, "MIT", ""},
		"none":                  {map[string]string{"README.md": mit}, "", "no licence file"},
		"an unknown one":        {map[string]string{"LICENSE": commons}, "", "unknown"},
		"a known one and more":  {map[string]string{"LICENSE.txt": mit + strings.Repeat(commons, 5)}, "MIT", "unknown"},
		"an unknown second one": {map[string]string{"LICENSE": mit, "LICENSE.other": commons}, "MIT", "LICENSE.other"},
		"one that binds users":  {map[string]string{"COPYING": agplHeader}, "AGPL-3.0-or-later", "not one of"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tc.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := licencesOf(dir)
			if joined := strings.Join(got, " "); joined != tc.want {
				t.Errorf("got %q, want %q", joined, tc.want)
			}
			if (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("got %v, want %q", err, tc.fails)
			}
		})
	}
}

func TestTheTableFailsWithAProblem(t *testing.T) {
	var out bytes.Buffer
	_, problem := classify([]byte(commons))
	err := write(
		&out,
		"go1",
		[]row{
			{module: module{Path: "example.com/good", Version: "v1"}, licences: []string{"MIT"}},
			{module: module{Path: "example.com/bad", Version: "v2"}, problem: problem},
		},
	)
	if err == nil || !strings.Contains(err.Error(), "example.com/bad v2") {
		t.Errorf("got %v", err)
	}
	for _, want := range []string{"example.com/good", "UNKNOWN", "MIT"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not have %q:\n%s", want, &out)
		}
	}
}

// TestTheProduct reads the product's own modules, which must be in the module cache or downloadable.
func TestTheProduct(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out, []string{"../..", "./cmd/..."}); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	if !strings.Contains(out.String(), "google.golang.org/grpc ") {
		t.Errorf("gRPC is not in the list:\n%s", &out)
	}
}
