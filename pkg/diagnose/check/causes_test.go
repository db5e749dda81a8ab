package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
)

func typeName(o any) string { return fmt.Sprintf("%T", o) }

func resourceOne() *resource.Quantity { return resource.NewQuantity(1, resource.DecimalSI) }

// faults has, for each row of the table in docs/troubleshooting.md, the observations while that fault lasts. The table
// states the hop, its status and the cause that the whole check must find, so each row also tests which hop decides.
var faults = map[string]func(s *situation){
	"the name of the Cluster is mistyped": func(s *situation) {
		s.key.Name = "c2"
	},
	"the user of check may not read Clusters (RBAC)": func(s *situation) {
		s.refuses["clusters"] = forbidden("clusters")
	},
	"the label that asks for a tunnel is missing": func(s *situation) {
		s.cluster.Labels, s.tunnel = nil, nil
	},
	"the Cluster is paused": func(s *situation) {
		s.cluster.Spec.Paused = ptr.To(true)
	},
	"an extra name belongs to another Cluster": func(s *situation) {
		s.notAccepted(v1alpha1.ReasonInvalidExtraName)
	},
	"two Clusters have the same hostname": func(s *situation) {
		s.notAccepted(v1alpha1.ReasonNameTaken)
	},
	"the kubeconfig Secret holds no kubeconfig": func(s *situation) {
		s.secret.Data = map[string][]byte{"value": []byte("x: [")}
	},
	"the kubeconfig's client certificate has expired": func(s *situation) {
		s.userBegins, s.userEnds = s.now.Add(-2*time.Hour), s.now.Add(-time.Hour)
	},
	"the name of the gateways is missing in DNS": func(s *situation) {
		s.addresses = nil
	},
	"nothing listens on the gateways' port": func(s *situation) {
		s.refuse(refusedDial)
	},
	"one of two gateways is down": func(s *situation) {
		s.dialErr["192.0.2.2"] = refusedDial
	},
	"packets to the gateways are dropped": func(s *situation) {
		s.refuse(context.DeadlineExceeded)
	},
	"one of two xds-servers is down": func(s *situation) {
		s.fleet.Servers[1].Err = errors.New("refused")
	},
	"one of two xds-servers is frozen": func(s *situation) {
		s.fleet.Servers[1].Err = context.DeadlineExceeded
	},
	"the process edge-agent was killed":                         (*situation).awayEdge,
	"`--proxy` of the edge names a port without a proxy":        (*situation).mute,
	"the edge-agent was killed, and its Envoy continues to run": (*situation).mute,
	"the edge-agent is frozen, and its Envoy continues to run":  (*situation).mute,
	"no edge was started":                                       (*situation).noEdge,
	"the controller is frozen":                                  (*situation).noController,
	"the controller is down":                                    (*situation).noController,
	"the webhook is down": func(s *situation) {
		s.rewrites = false
	},
	"the apiserver is down": func(s *situation) {
		s.sees(model.APIServerConnectionRefused)
	},
	"the Tunnel has a wrong address for the apiserver": func(s *situation) {
		s.sees(model.APIServerConnectionRefused)
	},
	"the apiserver accepts connections and does not answer": func(s *situation) {
		s.sees(model.APIServerNoAnswer)
	},
	"the apiserver is not ready (500): its etcd is down": func(s *situation) {
		s.sees(model.APIServerNotReady)
	},
	"the apiserver's serving certificate has expired": func(s *situation) {
		s.sees(model.APIServerCertificateNotValid)
	},
	"the kubeconfig Secret is deleted, and its provider has not created it again": func(s *situation) { s.secret = nil },
	"the kubeconfig has another CA": func(s *situation) {
		s.authority = s.otherCA.CertPEM()
	},
	"the kubeconfig's client certificate is of another CA": func(s *situation) {
		s.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
	},
	"the kubeconfig's user may do nothing in the workload cluster (403)": func(s *situation) {
		s.serve = answers(http.StatusForbidden)
	},
	"a ResourceQuota allows no further Secret": func(s *situation) {
		s.noEdge()
		s.quota()
		s.bootstrap = nil
	},
	"the Cluster is being deleted": func(s *situation) {
		s.cluster.DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
		s.cluster.Finalizers = []string{"cluster.cluster.x-k8s.io"}
	},
	"the gateway-agent of one gateway is down, so its Envoy receives no changes": func(s *situation) {
		s.fleet.Gateways[1].Connected = false
	},
	"Envoy rejects the configuration from an xds-server (NACK)": func(s *situation) {
		s.fleet.Gateways[0].Resources[0] = collect.Resource{
			Name: tunnelName, Status: collect.Rejected, Refusal: "unknown field",
		}
	},
	"a gateway has workers without a tunnel: it has more workers than the xds-servers are configured " +
		"for": func(s *situation) {
		s.fleet.Unserved = []collect.UnservedWorkers{{Gateway: "gateway-0", Node: "e1", Workers: 1}}
	},
	"all xds-servers are down": func(s *situation) {
		s.fleet = collect.Fleet{Servers: s.fleet.Servers}
		for i := range s.fleet.Servers {
			s.fleet.Servers[i].Err = errors.New("refused")
		}
		s.fleetErr = errors.New("refused")
	},
	"the network of the edge drops all packets": func(s *situation) {
		s.withoutTunnels()
		s.looks.looks[0] = collect.EdgeProbe{Node: "e1", Problem: "its agent has not answered in time"}
	},
	"the clock of the edge's machine is wrong by days": func(s *situation) {
		s.awayEdge()
		s.refused(collect.AboutHandshake, "remote error: tls: expired certificate")
	},
	"the only edge is revoked": func(s *situation) {
		s.awayEdge()
		s.tunnel.Spec.RevokedEdges = []string{"e1"}
	},
	"the token in the edge's bootstrap file is used up": func(s *situation) {
		s.noEdge()
		s.refused(collect.AboutEnrolment, "the token is used up")
	},
	"the token in the edge's bootstrap file has expired": func(s *situation) {
		s.noEdge()
		s.refused(collect.AboutEnrolment, "the token is unknown")
	},
	"the mode is sni, and the serving certificate lacks the name": func(s *situation) {
		s.looks.looks[0].APIServer.CertificateNames = []string{"kubernetes"}
	},
	"the Envoy of one of two gateways is frozen": func(s *situation) {
		s.fleet.Gateways[1].Hang = "its admin interface"
	},
	"the gateway-agent of one gateway is frozen, so its Envoy receives no revocations": func(s *situation) {
		s.fleet.Gateways[1].Problem = "no answer in time"
	},
	"the Envoy of the only edge is frozen": func(s *situation) {
		s.withoutTunnels()
		s.fleet.Edges[0].LastError = "Envoy hangs: its main thread does not answer"
	},
	"the kubeconfig Secret is edited by hand, and the controller is down": func(s *situation) {
		s.way.Server = "https://10.9.9.9:6443"
		s.noController()
	},
	"the bootstrap Secret is deleted, and the controller is down": func(s *situation) {
		s.noEdge()
		s.noController()
		s.bootstrap = nil
	},
	"the controller may not write Secrets (RBAC)": func(s *situation) {
		s.way.Server = "https://10.9.9.9:6443"
		s.mayNot["patch"] = true
	},
	"the edge had no control channel until its certificate expired": func(s *situation) {
		s.awayEdge()
		s.tunnel.Status.Edges[0].CertificateNotAfter = metav1.NewTime(s.now.Add(-time.Hour))
	},
}

func (s *situation) notAccepted(reason string) {
	s.tunnel.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason)}
}

// row is one row of the table of faults.
type row struct {
	title, cause string
	hop          ID
	status       Status
}

// documented reads the table of faults.
func documented(t *testing.T) (rows []row) {
	t.Helper()
	data, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	var text string
	for _, name := range []string{"faults", "network faults"} {
		_, table, _ := strings.Cut(string(data), "<!-- "+name+":")
		table, _, _ = strings.Cut(table, "<!-- end of "+name+" -->")
		text += table
	}
	signs := map[string]Status{"✗": Broken, "!": Warning}
	for line := range strings.Lines(text) {
		cells := strings.Split(line, " | ")
		if len(cells) != 4 || !strings.Contains(cells[1], "`") {
			continue
		}
		sign, hop, _ := strings.Cut(cells[1], " ")
		if signs[sign] == "" {
			continue // the head of the table
		}
		rows = append(rows, row{
			title: strings.TrimPrefix(cells[0], "| "), hop: ID(strings.Trim(hop, "`")), status: signs[sign],
			cause: strings.Trim(cells[2], "… "),
		})
	}
	return rows
}

func TestEachDocumentedFaultIsNamed(t *testing.T) {
	rows := documented(t)
	if len(rows) != len(faults) {
		t.Errorf("%d faults are documented, and %d have a case", len(rows), len(faults))
	}
	for _, want := range rows {
		t.Run(want.title, func(t *testing.T) {
			observe := faults[want.title]
			if observe == nil {
				t.Fatal("it is documented and has no case: add what is observed to faults")
			}
			s := newSituation(t)
			observe(s)
			got := s.check(t)
			verdict := got.Deciding()
			if verdict == nil || verdict.ID != want.hop || verdict.Status != want.status ||
				!strings.Contains(verdict.Cause, want.cause) || verdict.Cure == "" {
				t.Errorf("want %s %s: %s\n%s", want.status, want.hop, want.cause, shown(got))
			}
		})
	}
}

func TestAHealthyClusterHasNoProblem(t *testing.T) {
	if got := newSituation(t).check(t); got.Deciding() != nil {
		t.Error(shown(got))
	}
}

// shown returns a report as text.
func shown(r Report) string {
	var lines []string
	for _, hop := range r.Hops {
		lines = append(lines, fmt.Sprintf("%-8s %s: %s; %s; %s", hop.Status, hop.ID, hop.Detail, hop.Cause, hop.Cure))
	}
	return strings.Join(append(lines, "decides: "+string(r.First)), "\n")
}

// TestEachCauseHasACase reads the causes from the source of this package, so that no cause can be added without a case.
func TestEachCauseHasACase(t *testing.T) {
	var named []string
	for _, observe := range faults {
		s := newSituation(t)
		observe(s)
		named = append(named, causesIn(s.check(t))...)
	}
	for _, c := range others {
		s := newSituation(t)
		c.observe(s)
		named = append(named, causesIn(s.check(t))...)
	}
	all := causesInSource(t)
	if len(all) < 80 {
		t.Errorf("only %d causes were found in the source", len(all))
	}
	for cause, at := range all {
		if !slices.ContainsFunc(named, func(n string) bool { return strings.Contains(n, cause) }) {
			t.Errorf("%s: no case comes to the cause %q", at, cause)
		}
	}
}

func causesIn(r Report) (all []string) {
	for _, hop := range r.Hops {
		all = append(all, hop.Cause)
	}
	return all
}

// causesInSource returns the constant part of each cause in the source with its position: the second argument of
// broken, warning and worse, values assigned to a cause, and the return values of functions that return a cause.
func causesInSource(t *testing.T) map[string]string {
	t.Helper()
	var files []string
	for _, dir := range []string{".", "../explain", "../networks"} {
		found, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	all := map[string]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		add := func(e ast.Expr) {
			if text := longest(t, e); text != "" {
				all[line(text)] = set.Position(e.Pos()).String()
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if len(n.Args) == 3 && slices.Contains([]string{"broken", "warning", "worse"}, calledName(n.Fun)) {
					add(n.Args[1])
				}
			case *ast.AssignStmt:
				if name := calledName(n.Lhs[0]); name == "cause" {
					add(n.Rhs[0])
				}
			case *ast.FuncDecl:
				if returnsCause(n.Type.Results) {
					for _, r := range returns(n.Body) {
						add(r.Results[0])
					}
				}
			}
			return true
		})
	}
	return all
}

// returnsCause reports whether a function returns a cause and one more text.
func returnsCause(results *ast.FieldList) bool {
	if results == nil || len(results.List) != 1 {
		return false
	}
	names := results.List[0].Names
	return len(names) == 2 && names[0].Name == "cause"
}

func returns(body *ast.BlockStmt) (all []*ast.ReturnStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		if r, ok := n.(*ast.ReturnStmt); ok {
			all = append(all, r)
		}
		return true
	})
	return all
}

// calledName returns the last name of an identifier or a selector.
func calledName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// longest returns the longest string constant in an expression; empty: it has none.
func longest(t *testing.T, e ast.Expr) (text string) {
	t.Helper()
	ast.Inspect(e, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			value, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			if len(value) > len(text) {
				text = value
			}
		}
		return true
	})
	return strings.TrimSpace(text)
}

// other is a cause without a documented fault. Its case is a whole check too, including the hop that decides.
type other struct {
	hop     ID
	status  Status
	says    string // in detail, cause or cure
	observe func(s *situation)
}

var others = map[string]other{
	// The objects.
	"the Cluster shall have no tunnel": {HopCluster, Broken, "has opted out", func(s *situation) {
		s.cluster.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled
	}},
	"the Tunnel is paused": {HopCluster, Warning, "the Tunnel was paused", func(s *situation) {
		s.tunnel.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	}},
	"the user's credentials have ended": {
		HopCluster, Broken, "log in to the management cluster", func(s *situation) {
			s.refuses["clusters"] = apierrors.NewUnauthorized("")
		},
	},
	"Cluster API is not installed": {HopCluster, Broken, "is not installed there", func(s *situation) {
		s.refuses["clusters"] = &apimeta.NoKindMatchError{}
	}},
	"the management cluster does not answer": {HopCluster, Broken, "down or slow", func(s *situation) {
		s.refuses["clusters"], s.ended = context.Canceled, true
	}},
	"the management cluster cannot be asked": {HopCluster, Broken, "this machine has no route to it", func(s *situation) {
		s.refuses["clusters"] = errors.New("odd")
	}},
	"there is no Tunnel of a paused Cluster": {
		HopTunnel,
		Broken,
		"so the controller does not create one",
		func(s *situation) {
			s.tunnel, s.cluster.Spec.Paused = nil, ptr.To(true)
		},
	},
	"there is no Tunnel": {HopTunnel, Broken, "has not created it yet", func(s *situation) { s.tunnel = nil }},
	"there is no Tunnel and no controller": {HopTunnel, Broken, "no controller leads", func(s *situation) {
		s.tunnel = nil
		s.noController()
	}},
	"the Tunnel is being deleted": {HopTunnel, Broken, "the Tunnel was deleted", func(s *situation) {
		s.tunnel.DeletionTimestamp, s.tunnel.Finalizers = ptr.To(metav1.NewTime(s.now)), []string{"fairlead.dev/kubeconfig"}
	}},
	"the controller has not looked at the Tunnel": {HopTunnel, Broken, "the controller is too slow", func(s *situation) {
		s.tunnel.Status.Conditions = nil
	}},
	"the controller has not looked at a paused Tunnel": {
		HopCluster, Warning, "the Cluster was paused", func(s *situation) {
			s.tunnel.Status.Conditions, s.cluster.Spec.Paused = nil, ptr.To(true)
		},
	},
	"the Tunnel waits for its Cluster": {HopTunnel, Warning, "fairlead move", func(s *situation) {
		s.tunnel.Status.Conditions[0].Reason = v1alpha1.ReasonWaitingForCluster
	}},
	"the names give no DNS name": {HopTunnel, Broken, "do not form a valid DNS name", func(s *situation) {
		s.notAccepted(v1alpha1.ReasonInvalidName)
	}},
	"the address is none": {HopTunnel, Broken, "must be an IP address or", func(s *situation) {
		s.notAccepted(v1alpha1.ReasonInvalidAPIServer)
	}},
	"the owner is no Cluster": {HopTunnel, Broken, "an object other than its Cluster", func(s *situation) {
		s.notAccepted(v1alpha1.ReasonControlledByOther)
	}},
	"the installation has no tunnels": {HopTunnel, Broken, "has no tunnels", func(s *situation) {
		s.notAccepted(v1alpha1.ReasonTunnelsOff)
	}},
	"a reason that is newer than check": {HopTunnel, Broken, "correct what the message names", func(s *situation) {
		s.notAccepted("New")
	}},

	// The kubeconfig.
	"a ResourceQuota is full, and the kubeconfig Secret is gone": {
		HopKubeconfig, Broken, "so its provider cannot create it", func(s *situation) {
			s.secret = nil
			s.quota()
		},
	},
	"the kubeconfig leads elsewhere": {HopKubeconfig, Broken, "has not corrected it yet", elsewhere},
	"the kubeconfig of a paused Cluster leads elsewhere": {
		HopKubeconfig, Broken, "so the controller does not correct it", func(s *situation) {
			elsewhere(s)
			s.cluster.Spec.Paused = ptr.To(true)
		},
	},
	"the controller states why it does not write it": {
		HopKubeconfig, Broken, "correct what the message names", func(s *situation) {
			elsewhere(s)
			s.notReady("Odd")
		},
	},
	"the kubeconfig waits for a reverse tunnel": {
		HopKubeconfig, Warning, "once a reverse tunnel is up", func(s *situation) {
			elsewhere(s)
			s.notReady(v1alpha1.ReasonWaitingForTunnel)
			s.tunnel.Status.Kubeconfig = v1alpha1.KubeconfigStatus{}
		},
	},
	"the kubeconfig Secret is immutable": {HopKubeconfig, Broken, "the Secret is immutable", func(s *situation) {
		s.notReady(v1alpha1.ReasonNotWritable)
	}},
	"the kubeconfig names no user": {
		HopKubeconfig, Broken, "its current context names no user", func(s *situation) {
			s.edit = func(c *clientcmdapi.Config) { c.Contexts["x"].AuthInfo = "" }
		},
	},
	"the client certificate ends soon": {HopKubeconfig, Warning, "it was not renewed yet", func(s *situation) {
		s.userBegins, s.userEnds = s.now.Add(-20*time.Hour), s.now.Add(time.Minute)
	}},
	"the client certificate is still to begin": {
		HopKubeconfig, Broken, "the clock of this machine is slow", func(s *situation) {
			s.userBegins = s.now.Add(time.Minute)
		},
	},
	"the client certificate has ended, and the apiserver refuses it": {
		HopKubeconfig, Broken, "it was not renewed", func(s *situation) {
			s.userBegins, s.userEnds = s.now.Add(-2*time.Hour), s.now.Add(-time.Hour)
			s.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
		},
	},
	"the CA is no certificate": {HopKubeconfig, Broken, "another CA", func(s *situation) {
		s.authority = []byte("no PEM")
	}},

	// Names and ports.
	"--via is not host:port": {
		HopName, Broken, "--via has the wrong form", func(s *situation) { s.via = "gw.test" },
	},
	"the DNS gives no answer": {HopName, Broken, "restore DNS", func(s *situation) {
		s.lookupErr = &net.DNSError{IsTimeout: true}
	}},
	"the DNS gives a bad answer": {HopName, Broken, "no usable answer", func(s *situation) {
		s.lookupErr = errors.New("odd")
	}},
	"the port is none": {HopPort, Broken, "has an invalid port", func(s *situation) {
		s.way.Server = "https://" + gatewayName + ":99999"
		s.tunnel.Status.Kubeconfig.Server = s.way.Server
	}},
	"there is no route to the gateways": {HopPort, Broken, "no route to the gateway", func(s *situation) {
		s.refuse(&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH})
	}},
	"a connection fails for another reason": {HopPort, Broken, "cannot be opened from here", func(s *situation) {
		s.refuse(errors.New("odd"))
	}},

	// Gateways and tunnels.
	"there is no gateway": {HopRoute, Broken, "has no replicas", func(s *situation) { s.fleet.Gateways = nil }},
	"no gateway reports": {HopRoute, Broken, "the gateways are down", func(s *situation) {
		s.fleet.Gateways[0].Connected, s.fleet.Gateways[1].Connected = false, false
	}},
	"a gateway was not sent a route": {HopRoute, Broken, "has not read the Tunnel yet", func(s *situation) {
		s.fleet.Gateways[0].Resources[0] = collect.Resource{Name: tunnelName, Status: collect.Missing}
	}},
	"a gateway has no configuration stream": {HopRoute, Warning, "receives no changes", func(s *situation) {
		s.fleet.Gateways[0].Resources = nil
	}},
	"a gateway does not answer a route": {HopRoute, Warning, "hangs, or is starting", func(s *situation) {
		s.fleet.Gateways[0].Resources[0] = collect.Resource{Name: tunnelName, Status: collect.Stale}
	}},
	"the Envoys of all gateways are frozen": {
		HopRoute, Broken, "no other gateway accepts clients", func(s *situation) {
			for i := range s.fleet.Gateways {
				s.fleet.Gateways[i].Hang, s.fleet.Gateways[i].Ready = "its admin interface", false
			}
		},
	},
	"one gateway has no tunnel": {HopTunnels, Broken, "reach other gateways but not this one", func(s *situation) {
		s.fleet.Tunnels = s.fleet.Tunnels[:1]
	}},
	"the record of a gateway has a gap": {
		HopTunnels, Warning, "revocations are not proven there", func(s *situation) {
			s.fleet.Gateways[0].Incomplete = "a line was lost"
		},
	},

	// Edges.
	"the clock of an edge is wrong": {
		HopEdge, Warning, "or of the management cluster is wrong", complaint("certificate: the clock is late"),
	},
	"an edge gets no certificate": {
		HopHandshake, Warning, "cannot obtain or renew", complaint("certificate: no controller signs"),
	},
	"an edge refuses its configuration": {
		HopHandshake, Warning, "differ, or one has a fault", complaint("configuration: an unknown field"),
	},
	"an edge started without the control channel": {
		HopHandshake, Warning, "without reaching the control channel", complaint("control channel: refused"),
	},
	"the Envoy of an edge has ended": {
		HopHandshake, Warning, "ended unexpectedly", complaint("Envoy: exit code 1"),
	},
	"the Envoy of an edge does not start": {
		HopHandshake, Warning, "cannot be started", complaint("start of Envoy: no such file"),
	},
	"the Envoy of an edge was replaced": {
		HopHandshake, Warning, "edge-agent has replaced it", complaint("Envoy replaced: it stood still"),
	},
	"the disk of an edge is full": {
		HopHandshake, Warning, "write its state folder", complaint("disk: no space left"),
	},
	"an edge reports something else": {
		HopHandshake, Warning, "the edge reports this error", complaint("new: odd"),
	},
	"an edge reports and has no tunnel": {
		HopHandshake, Broken, "blocks tunnels", (*situation).withoutTunnels,
	},
	"the bootstrap Secret is gone": {HopEdge, Broken, "has not created it again yet", func(s *situation) {
		s.noEdge()
		s.bootstrap = nil
	}},
	"the bootstrap Secret of a paused Cluster is gone": {
		HopEdge, Broken, "is paused, so the controller does not create the Secret", func(s *situation) {
			s.noEdge()
			s.bootstrap, s.cluster.Spec.Paused = nil, ptr.To(true)
		},
	},
	"the token in the bootstrap Secret is not on record": {
		HopEdge, Broken, "has no record of it", func(s *situation) {
			s.noEdge()
			s.tunnel.Status.Tokens = nil
		},
	},
	"the token in the bootstrap Secret has expired": {HopEdge, Broken, "it expired at", func(s *situation) {
		s.noEdge()
		s.tunnel.Status.Tokens[0].ExpiresAt = metav1.NewTime(s.now.Add(-time.Hour))
	}},
	"the token in the bootstrap Secret is used up": {HopEdge, Broken, "it is used up: 5 of 5", func(s *situation) {
		s.noEdge()
		s.tunnel.Status.Tokens[0].Uses = 5
	}},
	"the token is of no use, and the Cluster is paused": {
		HopEdge, Broken, "is paused, so the token is not replaced", func(s *situation) {
			s.noEdge()
			s.tunnel.Status.Tokens, s.cluster.Spec.Paused = nil, ptr.To(true)
		},
	},
	"the token is of no use, and the controller is down": {
		HopEdge, Broken, "so the token is not replaced", func(s *situation) {
			s.noEdge()
			s.noController()
			s.tunnel.Status.Tokens = nil
		},
	},
	"a request of an edge was denied": {HopEdge, Broken, "is not the newest", func(s *situation) {
		s.noEdge()
		s.others = append(s.others, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{
				Name: "r", Annotations: map[string]string{v1alpha1.RequestTunnelAnnotation: "prod/c1"},
			},
			Status: certificatesv1.CertificateSigningRequestStatus{
				Conditions: []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied}},
			},
		})
	}},

	// The apiserver.
	"the DNS of the edge does not have the name": {
		HopAPIServer, Broken, "does not resolve the apiserver's name", func(s *situation) {
			s.sees(model.APIServerNameNotResolved)
		},
	},
	"the edge has no route": {HopAPIServer, Broken, "has no route to the apiserver", func(s *situation) {
		s.sees(model.APIServerNoRoute)
	}},
	"packets from the edge to the apiserver are dropped": {
		HopAPIServer, Broken, "a firewall drops packets to it", func(s *situation) {
			s.sees(model.APIServerConnectionTimeout)
		},
	},
	"another server answers": {HopAPIServer, Broken, "the address is not that of an apiserver", func(s *situation) {
		s.sees(model.APIServerNotAPIServer)
	}},
	"an observation that is newer than check": {
		HopAPIServer, Broken, "does not reach the apiserver", func(s *situation) {
			s.sees("Odd")
		},
	},
	"the serving certificate ends soon": {HopAPIServer, Warning, "it was not renewed", func(s *situation) {
		s.looks.looks[0].APIServer.CertificateEnd = s.now.Add(time.Minute)
	}},

	// Requests.
	"the serving certificate lacks the name": {
		HopAuthentication, Broken, "lacks the name that the kubeconfig verifies", func(s *situation) {
			s.way.TLSServerName, s.tunnel.Status.Kubeconfig.TLSServerName = "other.test", "other.test"
			s.looks.looks[0].APIServer.CertificateNames = nil
		},
	},
	"the serving certificate has ended": {HopAuthentication, Broken, "not valid now", func(s *situation) {
		s.servingEnds = s.now.Add(-time.Minute)
	}},
	"the serving certificate is of another CA": {
		HopAuthentication, Broken, "did not sign the apiserver's certificate", func(s *situation) {
			s.serving = s.otherCA
		},
	},
	"a request is not answered": {
		HopAuthentication,
		Broken,
		"the connection opens but the apiserver does not answer",
		func(s *situation) {
			s.dialErr[gatewayName] = context.DeadlineExceeded
		},
	},
	"a request fails otherwise": {
		HopAuthentication, Broken, "the path to the apiserver is broken", func(s *situation) {
			s.dialErr[gatewayName] = errors.New("odd")
		},
	},
	"the gateway has no tunnel": {
		HopAuthentication,
		Broken,
		"it is unreachable",
		func(s *situation) { s.tls = endHandshakes },
	},
	"the gateway ends a request": {
		HopAuthentication, Broken, "the gateway closes the connection", func(s *situation) {
			s.serve = cut
		},
	},
	"the apiserver refuses the client certificate": {
		HopAuthentication, Broken, "rejects the client certificate", func(s *situation) {
			s.tls = func(c *tls.Config) {
				c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
			}
		},
	},
	"the apiserver fails": {HopAuthentication, Broken, "the apiserver is not healthy", func(s *situation) {
		s.serve = answers(http.StatusInternalServerError)
	}},
	"another server answers requests": {HopAuthentication, Broken, "is not an apiserver", func(s *situation) {
		s.serve = answers(http.StatusNotFound)
	}},
	"a watch does not open": {HopWatch, Broken, "streams are not", watched(cut)},
	"a watch is forbidden": {
		HopWatch, Broken, "may not watch", watched(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
		}),
	},
	"a watch ends": {
		HopWatch,
		Broken,
		"streams are closed on the path",
		watched(func(http.ResponseWriter, *http.Request) {}),
	},

	// Fairlead's own programs.
	"the webhook is not installed": {
		HopServers, Warning, "the webhook is not installed", func(s *situation) {
			s.webhook = nil
		},
	},

	// Which hop decides, of several that are broken.
	"gateways that refuse come before edges that are away": {
		HopPort, Broken, "nothing listens there", func(s *situation) {
			s.refuse(refusedDial)
			s.awayEdge()
		},
	},
	"a frozen Envoy comes before the tunnels that it lost": {
		HopRoute, Broken, "frozen, deadlocked", func(s *situation) {
			s.withoutTunnels()
			s.fleet.Gateways[0].Hang, s.fleet.Gateways[0].Ready, s.fleet.Gateways[1].Ready = "its admin interface", false, false
		},
	},
	"what is broken comes before an earlier warning": {
		HopAPIServer, Broken, "the apiserver is down", func(s *situation) {
			s.cluster.Spec.Paused = ptr.To(true)
			s.sees(model.APIServerConnectionRefused)
		},
	},
}

func elsewhere(s *situation) { s.way.Server = "https://10.9.9.9:6443" }

func (s *situation) notReady(reason string) {
	c := condition(v1alpha1.ConditionKubeconfigReady, metav1.ConditionFalse, reason)
	s.tunnel.Status.Conditions = append(s.tunnel.Status.Conditions, c)
}

func complaint(text string) func(*situation) {
	return func(s *situation) { s.fleet.Edges[0].LastError = text }
}

// watched answers watches in its own way, and all other requests like a healthy apiserver.
func watched(serve http.HandlerFunc) func(*situation) {
	return func(s *situation) {
		s.serve = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") == "true" {
				serve(w, r)
				return
			}
			wellServed(w, r)
		}
	}
}

// endHandshakes ends each handshake as a gateway does for a name without tunnels.
func endHandshakes(c *tls.Config) {
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS12}, nil
	}
}

func TestOtherCauses(t *testing.T) {
	for sentence, want := range others {
		t.Run(sentence, func(t *testing.T) {
			s := newSituation(t)
			want.observe(s)
			got := s.check(t)
			verdict := got.Deciding()
			if verdict == nil || verdict.ID != want.hop || verdict.Status != want.status ||
				!strings.Contains(verdict.Detail+"\n"+verdict.Cause+"\n"+verdict.Cure, want.says) {
				t.Errorf("want %s %s: %s\n%s", want.status, want.hop, want.says, shown(got))
			}
		})
	}
}
