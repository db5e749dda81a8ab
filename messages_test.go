package fairlead_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/golden"
)

// programs are the programs of which each has a list of messages.
var programs = []string{"controller", "xds-server", "gateway-agent", "edge-agent", "runtime-extension", "fairlead"}

// The kinds of messages, in the order in which a list shows them.
const (
	logMessage   = "Log lines"
	eventMessage = "Events"
	statusText   = "Conditions and field errors"
	gRPCMessage  = "gRPC errors"
	errorMessage = "Errors"
	otherText    = "Other text"
)

// messageKinds are the headings of a list.
var messageKinds = []struct{ kind, about string }{
	{logMessage, "The field `msg` of a log line. Values follow as further fields."},
	{eventMessage, "Notes of Kubernetes events; [their reasons](../reasons.md) are stable."},
	{statusText, "Messages of conditions, and what is wrong with a field and how to correct it."},
	{gRPCMessage, "Answers of a server, as its client reports them."},
	{errorMessage, "Parts of errors. The program joins them from left to right."},
	{otherText, "Text that the program puts into messages, or prints."},
}

// TestMessageListsMatchTheCode compares the list of messages of each program with the code, so that messages are
// read as a set. Run it with -update to write the lists again.
func TestMessageListsMatchTheCode(t *testing.T) {
	parsed := map[string][]message{}
	for _, program := range programs {
		var all []message
		for _, p := range dependencies(t, program) {
			if _, done := parsed[p.ImportPath]; !done {
				parsed[p.ImportPath] = messagesOf(t, p)
			}
			all = append(all, parsed[p.ImportPath]...)
		}
		golden.CheckFile(t, filepath.Join("docs", "reference", "messages", program+".md"), messageList(program, all))
	}
}

// The rules for messages. A message states facts about objects: it names no persons, and it has no contractions, so
// that a search for "cannot" finds each failure.
var (
	persons      = regexp.MustCompile(`(?i)\b(who|whom|whoever|nobody|somebody|anybody|everybody|someone|anyone)\b`)
	contractions = regexp.MustCompile(
		`(?i)\b(can|won|isn|aren|wasn|doesn|don|didn|hasn|haven|couldn|shouldn|wouldn)['’]t\b`,
	)
	lowerCase = regexp.MustCompile(`^([a-z]|(CA|DNS|Envoy|StatefulSet|Tunnels?)\b)`)
)

// TestMessagesNameNoPersonsAndHaveNoContractions checks every message of every program. A log line also begins with a
// lower-case letter, unless it begins with a name, and ends without punctuation.
func TestMessagesNameNoPersonsAndHaveNoContractions(t *testing.T) {
	checked := map[string]bool{}
	for _, program := range programs {
		for _, p := range dependencies(t, program) {
			if checked[p.ImportPath] {
				continue
			}
			checked[p.ImportPath] = true
			for _, m := range messagesOf(t, p) {
				if problem := problemOf(m); problem != "" {
					t.Errorf("%s: %q %s", m.place, m.text, problem)
				}
			}
		}
	}
}

// problemOf returns the rule that a message breaks, or "".
func problemOf(m message) string {
	switch {
	case persons.MatchString(m.text):
		return "names a person: name the object, or use the passive voice"
	case contractions.MatchString(m.text):
		return "has a contraction: write cannot, does not"
	case m.kind == logMessage && !lowerCase.MatchString(m.text):
		return "does not begin with a lower-case letter"
	case m.kind == logMessage && strings.ContainsAny(m.text[len(m.text)-1:], ".!"):
		return "ends with punctuation"
	}
	return ""
}

// message is one text of the code.
type message struct{ kind, text, place string }

// dependencies returns the packages of this module that a program consists of.
func dependencies(t *testing.T, program string) (ours []listed) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Dir,GoFiles", "./cmd/"+program)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing packages of %s: %v", program, err)
	}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p listed
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(p.ImportPath, modulePath) {
			ours = append(ours, p)
		}
	}
	return ours
}

// messagesOf returns the messages in the hand-written files of a package.
func messagesOf(t *testing.T, p listed) (all []message) {
	t.Helper()
	set := token.NewFileSet()
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if ast.IsGenerated(file) {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			for _, m := range messagesAt(n) {
				m.place = strings.TrimPrefix(p.ImportPath, modulePath)
				all = append(all, m)
			}
			return true
		})
	}
	return all
}

// messagesAt returns the messages that one node of the syntax tree holds, without those of the nodes below it.
func messagesAt(n ast.Node) []message {
	switch n := n.(type) {
	case *ast.CallExpr:
		selector, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			return nil
		}
		return callMessages(selector, n.Args)
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "Message" || key.Name == "Problem" || key.Name == "Cure") {
			return textOf(statusText, n.Value)
		}
	}
	return nil
}

// callMessages returns the message of a call. Functions are recognised by name: their argument is a message in each
// package that has them.
func callMessages(selector *ast.SelectorExpr, args []ast.Expr) []message {
	if len(args) == 0 {
		return nil
	}
	of, _ := selector.X.(*ast.Ident)
	from := ""
	if of != nil {
		from = of.Name
	}
	switch name := selector.Sel.Name; {
	case from == "fmt" && name == "Errorf", from == "errors" && name == "New":
		return textOf(errorMessage, args[0])
	case from == "status" && (name == "Error" || name == "Errorf" || name == "New" || name == "Newf") && len(args) > 1:
		return textOf(gRPCMessage, args[1])
	case name == "Eventf" && len(args) > 5:
		return textOf(eventMessage, args[5])
	case slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, name) && from != "status":
		return textOf(logMessage, args[0])
	case slices.Contains([]string{"DebugContext", "InfoContext", "WarnContext", "ErrorContext"}, name) && len(args) > 1:
		return textOf(logMessage, args[1])
	case name == "report" && len(args) > 2:
		return textOf(logMessage, args[1])
	case from == "objects" && name == "Wrap":
		return textOf(errorMessage, args[0])
	case from == "retry" && name == "Later":
		return textOf(gRPCMessage, args[0])
	case name == "SetTrouble" && len(args) > 1:
		return textOf(otherText, args[1])
	case from == "fmt" && (name == "Sprintf" || name == "Sprint"):
		return textOf(otherText, args[0])
	case from == "fmt" && strings.HasPrefix(name, "Fprint") && len(args) > 1:
		return textOf(otherText, args[1])
	}
	return nil
}

// prose is a text that a person reads: at least two words.
var prose = regexp.MustCompile(`[A-Za-z]{2,}[,:;]? +[%A-Za-z<"]`)

// textOf returns a constant text as a message. Anything else, and what has fewer than two words, is no message.
func textOf(kind string, e ast.Expr) []message {
	text, ok := constantText(e)
	if !ok || !prose.MatchString(text) {
		return nil
	}
	return []message{{kind: kind, text: strings.TrimSpace(text)}}
}

// constantText returns the value of string literals that are joined by +.
func constantText(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, leftOK := constantText(e.X)
		right, rightOK := constantText(e.Y)
		if !leftOK {
			left = "…"
		}
		if !rightOK {
			right = "…"
		}
		return left + right, e.Op == token.ADD && (leftOK || rightOK)
	case *ast.ParenExpr:
		return constantText(e.X)
	}
	return "", false
}

// messageList renders the messages of a program: by kind, then by text, each with the packages that hold it.
func messageList(program string, all []message) []byte {
	places := map[message][]string{}
	for _, m := range all {
		key := message{kind: m.kind, text: m.text}
		if !slices.Contains(places[key], m.place) {
			places[key] = append(places[key], m.place)
		}
	}
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"# Messages of %s\n\n<!-- Written by `make update-golden` from the code: change it there. -->\n\n",
		program,
	)
	b.WriteString("For operators who search for a message, and for reviewers who read all messages as a set.\n" +
		"The text of a message is not stable; [names](../api.md) are. `%s` and `%q` stand for values.\n")
	for _, k := range messageKinds {
		var keys []message
		for key := range places {
			if key.kind == k.kind {
				keys = append(keys, key)
			}
		}
		if len(keys) == 0 {
			continue
		}
		slices.SortFunc(keys, func(a, b message) int {
			return cmp.Or(cmp.Compare(strings.ToLower(a.text), strings.ToLower(b.text)), cmp.Compare(a.text, b.text))
		})
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| message | package |\n|---|---|\n", k.kind, k.about)
		for _, key := range keys {
			slices.Sort(places[key])
			fmt.Fprintf(&b, "| %s | %s |\n", cell(key.text), strings.Join(places[key], ", "))
		}
	}
	return []byte(b.String())
}

// cell renders a text in a cell of a table: as code on one line.
func cell(text string) string {
	text = strings.NewReplacer("\n", "⏎", "|", `\|`, "`", "'").Replace(text)
	return "`" + text + "`"
}
