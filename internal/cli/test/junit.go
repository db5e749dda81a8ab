package test

import (
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

// suite is a report in the form that CI systems read. There is no schema of JUnit XML that all of them follow; these
// elements and attributes are understood by Jenkins, GitLab and the actions of GitHub.
type suite struct {
	XMLName  xml.Name   `xml:"testsuite"`
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Skipped  int        `xml:"skipped,attr"`
	Seconds  float64    `xml:"time,attr"`
	Cases    []testCase `xml:"testcase"`
}

type testCase struct {
	Group   string  `xml:"classname,attr"`
	Name    string  `xml:"name,attr"`
	Seconds float64 `xml:"time,attr"`
	Failure *note   `xml:"failure,omitempty"`
	Skipped *note   `xml:"skipped,omitempty"`
	Output  string  `xml:"system-out,omitempty"`
}

// note is why a test failed or did not run.
type note struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// add adds results of one group, such as the tests of one Cluster.
func (s *suite) add(group string, results []check.Result) {
	for _, r := range results {
		c := testCase{Group: group, Name: string(r.ID) + ": " + r.Title, Seconds: r.Seconds}
		switch r.Status {
		case check.Broken:
			c.Failure = &note{clean(r.Detail), clean("Likely cause: " + r.Cause + "\nWhat to do: " + r.Cure)}
			s.Failures++
		case check.Skipped, check.Unknown:
			c.Skipped = &note{clean(r.Detail), clean(r.Cure)}
			s.Skipped++
		default:
			c.Output = clean(r.Detail)
		}
		s.Tests++
		s.Seconds += r.Seconds
		s.Cases = append(s.Cases, c)
	}
}

// clean removes characters that XML does not permit: results quote errors of other programs.
func clean(s string) string { return strings.ToValidUTF8(s, "?") }

func (s *suite) write(path string) error {
	text, err := xml.MarshalIndent(s, "", "  ")
	if err == nil {
		err = disk.Replace(path, append([]byte(xml.Header), append(text, '\n')...))
	}
	if err != nil {
		return fmt.Errorf("--junit: writing %s: %w", path, err)
	}
	return nil
}
