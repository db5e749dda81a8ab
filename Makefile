# Fairlead. `make` alone prints the targets.
include tools/times/times.mk
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# Tests, the programs of the proofs and those of the images then share one compiled form of each dependency, and tests
# run what users get. Only the race detector needs cgo, and a form of its own.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)

BINARIES := controller xds-server edge-agent gateway-agent fairlead runtime-extension
PYTHON   := bin/venv/bin/python
LINT     := bin/golangci-lint

# A test that needs a real part fails without it instead of being skipped, because `make` has installed the part.
FUZZTIME ?= 10m
REQUIRED := ENVOY_REQUIRED=1 REAL_PARTS_REQUIRED=1 E2E_REQUIRED=1
UNIT     := ./api/... ./cmd/... ./deploy/... ./internal/... ./pkg/... ./test/lab/... .
# Packages of UNIT that need a kube-apiserver: SERVED have much concurrency of their own and run with the race detector,
# MANAGED have little, and PROXIED of them need an Envoy too. ENVOYS need only an Envoy, and RENDERED of them have no
# concurrency. BROWSED need a browser.
SERVED   := ./internal/informers/... ./pkg/source/... ./pkg/enrol/csr/... ./pkg/probe/... ./cmd/xds-server/...
MANAGED  := ./pkg/controller/... ./cmd/controller/... ./internal/cli/... ./deploy/kubernetes/... ./deploy/chart/... ./deploy/dns/... ./deploy/edge/... ./deploy/clusterclass/... ./deploy/runtime-extension/... ./deploy/monitoring/... ./pkg/capi/egress/...
PROXIED  := ./internal/cli
ENVOYS   := ./internal/cli/render ./pkg/envoy/... ./pkg/agent/... ./pkg/deltaxds/... ./pkg/xdsproxy/... ./pkg/tunnels/... ./pkg/sockets/... ./pkg/dial/... ./deploy/envoy/...
RENDERED := ./internal/cli/render ./pkg/envoy ./deploy/envoy
BROWSED  := ./pkg/diagnose/web
# Tests that rewrite generated files if they run with -update.
WRITING  := Golden|AsTheAgentsWriteThem|MatchTheCode|MatchTheCommandLine|MatchesTheCode|MatchesTheTests

.PHONY: help
help: ## print this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### build

.PHONY: build
build: ## build the programs into bin/
	@mkdir -p bin
	go build -ldflags=-w -o bin/ $(addprefix ./cmd/,$(BINARIES))

.PHONY: build-race
build-race: ## build them with the race detector, for the tests, into bin/race/
	@mkdir -p bin/race
	CGO_ENABLED=1 go build -race -o bin/race/ $(addprefix ./cmd/,$(BINARIES))

# VERSION (or TAG) is also the tag; without it the version is that of the commit. With REGISTRY, as registry.example.com/fairlead,
# the images are pushed too.
REGISTRY ?=
VERSION  ?= $(TAG)
IMAGES   := cd tools/images && go run . $(if $(REGISTRY),-registry $(REGISTRY))

.PHONY: images
images: ## build every image for amd64 and arm64 into bin/images (VERSION=v0.1.0), and push them if REGISTRY is set
	$(IMAGES) $(if $(VERSION),-version $(VERSION))

.PHONY: push-images
push-images: ## push the images of bin/images to REGISTRY, with the credentials of docker login
	$(IMAGES) -push-only

.PHONY: update-image-packages
update-image-packages: ## pin the newest packages of Debian in tools/images/packages.txt (on Debian, with gpgv)
	$(IMAGES) -update-packages

.PHONY: tools
tools: ## install the real parts: Envoy, Kubernetes, Cluster API and tools of the tests (25 min once, then cached)
	@cd tools/install && go run .

# Each target installs only the parts of its topic: tools/install/sets.go lists them.
TOPICS := lab apiserver managed machines operations robustness metrics networks page sight chart cluster install sites
.PHONY: $(addprefix parts.,$(TOPICS))
$(addprefix parts.,$(TOPICS)): parts.%:
	@cd tools/install && go run . $*

.PHONY: envoy
envoy: ## install only Envoy
	@cd tools/install && go run . envoy

DEMO := controller xds-server edge-agent gateway-agent fairlead
empty :=
space := $(empty) $(empty)
comma := ,
INSTALL_DEMO = cd tools/install && go run . -build $(subst $(space),$(comma),$(addprefix ./cmd/,$(DEMO)) ./test/demo) demo

.PHONY: demo
demo: ## show Cluster API managing two workload clusters that it cannot dial (as root; DEMO_EXIT=1 exits after the last step)
	@echo "demo: installs the parts that it needs, builds Fairlead and starts. Without any part in the cache that takes"
	@echo "      10 to 15 minutes on two idle processors, else less than 30 seconds. The plan follows."
	@$(INSTALL_DEMO)
	@bin/demo

.PHONY: demo-networks
demo-networks: ## show apiservers that reach machines at four sites, beside konnectivity (as root, 90 seconds; DEMO_EXIT=1 as above)
	@echo "demo-networks: installs the same parts as the demo, and builds konnectivity, a minute once. The plan follows."
	@$(INSTALL_DEMO)
	@cd tools/bench && go run ./install konnectivity-server konnectivity-agent
	@bin/demo networks

# The version of the chart is that of its images, which are pulled from REGISTRY.
CHART_VERSION = $(patsubst v%,%,$(or $(VERSION),0.0.0-dev))

.PHONY: chart
chart: parts.chart ## package the Helm chart into bin/chart (VERSION=v0.1.0 REGISTRY=registry.example.com/fairlead)
	tools/chart/package.sh "$(or $(VERSION),0.0.0-dev)" "$(REGISTRY)" bin/chart

.PHONY: chart-push
chart-push: chart ## push it to oci://REGISTRY/charts (http:// before REGISTRY turns TLS off, as for images)
	bin/helm push "bin/chart/fairlead-$(CHART_VERSION).tgz" "oci://$(patsubst http://%,%,$(REGISTRY))/charts" \
		$(if $(filter http://%,$(REGISTRY)),--plain-http) $(HELM_PUSH_FLAGS)

.PHONY: test-chart
test-chart: parts.chart ## the chart: each value, its errors, and install, upgrade and uninstall at a real kube-apiserver
	$(REQUIRED) go test -count=1 ./deploy/chart/...

##### test

.PHONY: test
test: ## all tests, with the short forms of the long proofs, and the time of each: what CI and the README run
	@TIMES_WITHOUT="test-parts verify-short" tools/times/run $(MAKE) --no-print-directory tools test-parts verify-short

# Tests mostly wait, so these run in parallel, the longest first. Programs for the proofs are built at the same time.
.PHONY: test-parts
test-parts: ## test-unit, test-controller, test-drift and validate, every package once
	$(MAKE) --no-print-directory --jobs=3 --output-sync=line test-managed validate-agents validate-rendered test-served test-rest test-drift e2e-short.test identity.test kubeconfigs.test fleet.test robustness.test sight.test networks.test install.test test-tools

# Each proof has its own networks. More than two at a time would slow each other down, and the installation runs two
# Kubernetes clusters, so it runs alone.
.PHONY: verify-short
verify-short: ## the short form of each proof, and the commands of the README
	$(MAKE) --no-print-directory verify-install-short
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target verify-kubeconfigs-short verify-main-short verify-sight-short verify-identity-short verify-fleet-short verify-robustness-short verify-security-short verify-networks-short test-metrics test-page test-readme-short

.PHONY: test-rest
test-rest: ## the packages of test-unit that no other part runs completely
	CGO_ENABLED=1 $(REQUIRED) go test -race $$(go list $(UNIT) | grep -vxFf <(go list $(SERVED) $(MANAGED) $(ENVOYS) $(BROWSED) ./deploy/recipes/...))
	CGO_ENABLED=1 go test -race -short $(BROWSED)

.PHONY: test-unit
test-unit: ## the fast part: no network beyond loopback, no Kubernetes, no Envoy
	CGO_ENABLED=1 go test -race -short $(UNIT)

.PHONY: test-controller
test-controller: test-served test-managed ## tests with a real kube-apiserver

.PHONY: test-served
test-served: parts.apiserver
	CGO_ENABLED=1 $(REQUIRED) go test -race $(SERVED)

.PHONY: test-managed
test-managed: parts.managed envoy
	$(REQUIRED) go test $(MANAGED)

.PHONY: test-controller-race
test-controller-race: parts.managed ## the controllers with the race detector, four minutes longer (test-e2e runs it too)
	CGO_ENABLED=1 $(REQUIRED) go test -race ./pkg/controller/...

.PHONY: test-drift
test-drift: ## check the edges in a KubeadmControlPlane and other providers' recipes with these projects' own code and types
	cd tools/drift && go test -vet=off ./...
	go test -count=1 ./deploy/recipes/...

.PHONY: validate
validate: validate-rendered validate-agents ## tests with a real Envoy: goldens, pairs of Envoys, supervision

.PHONY: validate-rendered
validate-rendered: envoy
	$(REQUIRED) go test $(RENDERED)

.PHONY: validate-agents
validate-agents: envoy
	CGO_ENABLED=1 $(REQUIRED) go test -race $$(go list $(ENVOYS) | grep -vxFf <(go list $(RENDERED)))

# The number of first uses of each kind. 50 take 2 minutes.
FIRST_USES ?= 500

.PHONY: test-first-uses
test-first-uses: envoy ## first uses of idle tunnels behind load balancers, in real time (20 min; its short form is in validate)
	ENVOY_REQUIRED=1 FIRST_USES=$(FIRST_USES) go test -count=1 -timeout=60m -parallel=6 -run TestFirstUses -v ./pkg/envoy

.PHONY: test-e2e
test-e2e: test-controller-race verify-main verify-identity verify-kubeconfigs verify-fleet verify-sight verify-security test-readme ## the whole system in network namespaces, as root

.PHONY: verify-main
verify-main: e2e.test ## proof of one tunnelled cluster, end to end (as root; its test names are the promises)
	cd test/e2e && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin/race $(CURDIR)/bin/race/e2e.test -test.v -test.timeout=15m

.PHONY: verify-main-short
verify-main-short: e2e-short.test ## the part of it that make test runs, without the race detector (45 s)
	cd test/e2e && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/e2e.test -test.v -test.short -test.timeout=10m

.PHONY: e2e.test
e2e.test: parts.lab build-race
	CGO_ENABLED=1 go test -race -c -o bin/race/e2e.test ./test/e2e

.PHONY: e2e-short.test
e2e-short.test: parts.lab build
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/e2e.test ./test/e2e

.PHONY: verify-identity
verify-identity: identity.test ## proof of how edges become trusted, stay trusted and are revoked (10 min, as root)
	cd test/identity && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/identity.test -test.v -test.timeout=20m

.PHONY: verify-identity-short
verify-identity-short: identity.test ## the part of it that make test runs (45 s)
	cd test/identity && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/identity.test -test.v -test.short -test.timeout=10m

.PHONY: identity.test
identity.test: parts.lab build
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/identity.test ./test/identity

.PHONY: verify-kubeconfigs
verify-kubeconfigs: kubeconfigs.test ## proof with real Cluster API: it creates, keeps, moves and removes clusters through tunnels (10 min, as root)
	cd test/kubeconfigs && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/kubeconfigs.test -test.v -test.timeout=20m

.PHONY: verify-kubeconfigs-short
verify-kubeconfigs-short: kubeconfigs.test ## the part of it that make test runs (45 s)
	cd test/kubeconfigs && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/kubeconfigs.test -test.v -test.short -test.timeout=10m

.PHONY: kubeconfigs.test
kubeconfigs.test: parts.machines build
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/kubeconfigs.test ./test/kubeconfigs

.PHONY: test-matrix
test-matrix: parts.machines build ## verify-main and verify-kubeconfigs with Cluster API 1.12 to 1.14, each with its oldest and newest Kubernetes (90 min, as root; SHORT=1 for their short forms, CELLS='^v1.13' for some)
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/e2e.test ./test/e2e
	go test -c -ldflags=-w -o bin/test/kubeconfigs.test ./test/kubeconfigs
	@SHORT=$(SHORT) CELLS='$(CELLS)' tools/matrix/run

.PHONY: verify-fleet
verify-fleet: fleet.test ## proof of many gateways, workers and servers together, and of both IP families (10 min, as root)
	$(REQUIRED) go test -count=1 ./test/synthetic
	cd test/fleet && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/fleet.test -test.v -test.timeout=20m

.PHONY: verify-fleet-short
verify-fleet-short: fleet.test ## the part of it that make test runs (45 s)
	cd test/fleet && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/fleet.test -test.v -test.short -test.timeout=5m

.PHONY: fleet.test
fleet.test: parts.lab build
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/fleet.test ./test/fleet

.PHONY: robustness
robustness: robustness.test ## random faults and operations for a long time (as root; DURATION=1h, SEED=7 or SCHEDULE=file for a known schedule, ATTEMPTS=20 to look for fewer steps that fail)
	@mkdir -p bin/robustness
	cd test/robustness && ROBUSTNESS=$(or $(abspath $(SCHEDULE)),random) SEED=$(SEED) DURATION=$(or $(DURATION),1h) ROBUSTNESS_HISTORY=$(CURDIR)/bin/robustness ROBUSTNESS_ATTEMPTS=$(or $(ATTEMPTS),12) ROBUSTNESS_RESULTS=$(CURDIR)/bin/robustness/results.jsonl $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/robustness.test -test.v -test.timeout=0
	go run ./test/robustness/report bin/robustness/results.jsonl

.PHONY: verify-robustness
verify-robustness: robustness.test ## proof of robustness: kept schedules, planted bugs, a new random schedule (10 min, as root)
	cd test/robustness && SEED=$(SEED) DURATION=$(DURATION) $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/robustness.test -test.v -test.timeout=20m

.PHONY: verify-robustness-short
verify-robustness-short: robustness.test ## the part of it that make test runs (45 s)
	cd test/robustness && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/robustness.test -test.v -test.short -test.timeout=5m

.PHONY: robustness.test
robustness.test: parts.robustness build
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/robustness.test ./test/robustness

.PHONY: verify-networks
verify-networks: parts.networks networks.test ## proof of remote networks: apiservers that reach kubelets, webhooks and APIs there, and workers that reach them
	cd test/networks && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/networks.test -test.v -test.timeout=15m -test.skip=TestRealKubelets

.PHONY: verify-networks-short
verify-networks-short: networks.test ## the part of it that make test runs (45 s)
	cd test/networks && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/networks.test -test.v -test.short -test.timeout=5m

.PHONY: verify-networks-cluster
verify-networks-cluster: networks.test parts.sites install-images ## the same with real kubelets, which join with the bootstrap data of Cluster API, and Pods, in four networks (3 min, as root)
	cd test/networks && env -u FAIRLEAD_TIMES $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/networks.test -test.v -test.timeout=20m -test.run=TestRealKubelets

# Kamaji, and the newest Kubernetes that this version of it accepts, in a folder of their own.
KAMAJI_KUBERNETES := v1.30.2
KAMAJI_PROGRAMS   := kube-apiserver kube-controller-manager kube-scheduler kubelet kubeadm kube-proxy

.PHONY: kamaji-parts
kamaji-parts:
	@cd tools/install && go run . -bin ../../bin/kamaji $(KAMAJI_PROGRAMS:%=-at=%=$(KAMAJI_KUBERNETES)) kamaji
	@cd tools/bench && go run ./install konnectivity-server konnectivity-agent

.PHONY: verify-networks-kamaji
verify-networks-kamaji: install.test parts.sites kamaji-parts ## the real Kamaji: a running control plane migrates off konnectivity, with real kubelets (6 min, as root)
	cd test/install && env -u FAIRLEAD_TIMES $(REQUIRED) FAIRLEAD_MACHINE_PARTS=$(CURDIR)/bin/kamaji $(CURDIR)/bin/test/install.test -test.v -test.timeout=20m -test.run=TestKamaji

.PHONY: networks.test
networks.test: parts.lab build
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/networks.test ./test/networks

.PHONY: test-page
test-page: parts.page build ## the status page of a real xds-server in a real browser
	$(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin go test -count=1 -timeout=20m $(BROWSED) ./test/page

.PHONY: test-page-full
test-page-full: parts.page build ## the same, and with 10,000 real Clusters (a minute more)
	PAGE_FULL=1 $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin go test -count=1 -timeout=20m -v $(BROWSED) ./test/page

.PHONY: page-screenshots
page-screenshots: ## take the pictures of docs/page.md again
	cd tools/install && go run . chromium
	mkdir -p docs/images
	PAGE_SCREENSHOTS=$(CURDIR)/docs/images go test -count=1 -run TestScreenshots $(BROWSED)

.PHONY: verify-sight
verify-sight: sight.test test-page-full test-metrics ## proof that check finds and names each known fault, and that its cure works (10 min, as root)
	cd test/sight && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/sight.test -test.v -test.timeout=20m

.PHONY: verify-sight-short
verify-sight-short: sight.test ## the part of it that make test runs, without a browser (45 s)
	cd test/sight && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/sight.test -test.v -test.short -test.timeout=5m

.PHONY: verify-operations
verify-operations: operations.test ## proof of docs/operations.md: its commands, for upgrades and after losses (10 min, as root)
	cd test/operations && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/operations.test -test.v -test.timeout=20m

.PHONY: operations.test
operations.test: parts.operations build
	@mkdir -p bin/test
	go test -c -o bin/test/operations.test ./test/operations

.PHONY: test-cluster
test-cluster: parts.cluster ## real Kubernetes clusters with kubelets, containers and networks of Pods on this machine (5 min, as root)
	$(REQUIRED) go test -count=1 -timeout=15m -v ./test/cluster

# The names of the proof by its subject.
.PHONY: install-test install-test-short
install-test: verify-install
install-test-short: verify-install-short

.PHONY: verify-install
verify-install: install.test ## proof of installation in real clusters: Helm, edges in each form, disturbances, removal, policies, upgrade and back (20 min, as root; also install-test)
	cd test/install && env -u FAIRLEAD_TIMES $(REQUIRED) $(CURDIR)/bin/test/install.test -test.v -test.timeout=60m -test.skip=TestKamaji

.PHONY: verify-install-short
verify-install-short: install.test ## the part of it that takes 80 seconds: install, helm test, the first tunnel, a drain, removal
	cd test/install && env -u FAIRLEAD_TIMES $(REQUIRED) $(CURDIR)/bin/test/install.test -test.v -test.short -test.timeout=10m -test.run=TestInstallation

.PHONY: install.test
install.test: parts.install install-images
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/install.test ./test/install

# The images that the test pushes to its registry, for this machine alone, if anything of them has changed. The version
# is the one of docs/install.md.
.PHONY: install-images
install-images:
	$(IMAGES) -reuse -arch "$$(go env GOARCH)" -version v0.1.0 -out $(CURDIR)/bin/test/images

.PHONY: cluster
cluster: parts.cluster ## run such a cluster with two nodes until Ctrl-C, as root
	go run ./test/lab/cluster/run -nodes 2

.PHONY: verify-security
verify-security: security.test ## attack an installation as outsider, tenant and namespace owner; print which control stopped which attack (as root)
	cd test/security && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/security.test -test.v -test.timeout=20m

.PHONY: verify-security-short
verify-security-short: security.test ## the part of it that make test runs (45 s)
	cd test/security && $(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin $(CURDIR)/bin/test/security.test -test.v -test.short -test.timeout=5m

.PHONY: security.test
security.test: parts.lab build
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/security.test ./test/security

# One at a time, because two would share the processors. A finding is a new file in testdata/fuzz of its package, which
# every later test run includes.
.PHONY: fuzz
fuzz: ## run every fuzzer in turn, each for FUZZTIME (default 10m); findings are kept in testdata/fuzz
	@mkdir -p bin
	@go test -list '^Fuzz' $(UNIT) | awk '/^Fuzz/{name[++n]=$$1} /^ok/{for(i=1;i<=n;i++)print $$2,name[i]; n=0}' >bin/fuzzers
	@failed=0; while read -r package fuzzer; do \
		echo "== $$package $$fuzzer"; \
		go test "$$package" -run '^$$' -fuzz "^$$fuzzer\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=10s -timeout=0 </dev/null || failed=$$((failed + 1)); \
	done <bin/fuzzers; echo "fuzz: $$(wc -l <bin/fuzzers) fuzzers, $$failed failed"; test "$$failed" = 0

.PHONY: test-metrics
test-metrics: parts.metrics build ## a real Prometheus scrapes an installation: every metric, rule and query of the dashboard (1 min, as root)
	$(REQUIRED) FAIRLEAD_BIN=$(CURDIR)/bin go test -count=1 -timeout=10m -v ./test/metrics

.PHONY: sight.test
sight.test: parts.sight build
	@mkdir -p bin/test
	go test -c -ldflags=-w -o bin/test/sight.test ./test/sight

.PHONY: test-images
test-images: ## build the real images twice, from two folders, compare their digests and run their programs (as root)
	cd tools/images && IMAGES_REQUIRED=1 go test -count=1 -timeout=60m -run TestReal -v .

.PHONY: test-readme
test-readme: parts.lab build ## run every command of the README and of the quickstart, as root
	env -u FAIRLEAD_TIMES $(REQUIRED) go test -count=1 -timeout 20m -v ./test/readme

.PHONY: test-readme-short
test-readme-short: parts.lab build ## the same without the demo of networks, which takes a minute
	env -u FAIRLEAD_TIMES $(REQUIRED) go test -count=1 -timeout 10m -v -short ./test/readme

.PHONY: update-golden
update-golden: parts.chart ## rewrite the golden files, and the generated files in deploy and docs
	cp deploy/monitoring/rules.yaml deploy/monitoring/dashboard.json deploy/chart/fairlead/files/
	go test ./deploy/chart -run '$(WRITING)' -update
	go test $$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' $(UNIT) | awk '/internal\/(golden|clidoc)/{print $$1}') ./test/sight ./test/networks -run '$(WRITING)' -update

##### measure

.PHONY: bench
bench: bench-build ## measure the data path, networks, growth and a real manager, quickly, into bin/bench (10 min)
	@mkdir -p bin/bench && cp -r docs/benchmarks.md docs/benchmarks bin/bench/
	bin/test/bench all --quick --results bin/bench
	bin/test/bench report --results bin/bench --document bin/bench/benchmarks.md

.PHONY: bench-full
bench-full: bench-build ## the same with everything, into test/bench/results, docs/benchmarks.md and docs/benchmarks (2 h)
	bin/test/bench all
	bin/test/bench forward
	bin/test/bench report

.PHONY: bench-day
bench-day: parts.lab build ## a simulated day with 1,000 workload clusters: fails if memory, goroutines or open files grow (13 min, as root)
	@mkdir -p bin/test
	go test ./test/bench/scale
	go build -o bin/test/bench ./test/bench
	bin/test/bench day --results bin/bench

.PHONY: bench-report
bench-report: ## rewrite the tables and plots of docs/benchmarks.md and docs/benchmarks from test/bench/results
	go run ./test/bench report

.PHONY: bench-build
bench-build: parts.lab build
	@mkdir -p bin/test
	cd tools/bench && go run ./install
	go build -o bin/test/bench ./test/bench

##### keep

.PHONY: check
check: format lint test-unit validate ## before each commit
	git diff --exit-code

.PHONY: format
format: $(LINT) ## format all Go files
	$(LINT) fmt ./...

.PHONY: lint
lint: $(LINT) ## run the linters
	$(LINT) run ./...

$(LINT): tools/lint/go.mod tools/lint/go.sum
	@mkdir -p bin
	cd tools/lint && go build -o ../../$(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: licences
licences: ## list module, version and licence of everything in the programs; fails if one is unknown
	@mkdir -p bin
	@cd tools/licences && go build -o ../../bin/licences .
	@bin/licences . ./cmd/...

.PHONY: vulncheck
vulncheck: ## find known vulnerabilities in code that the programs call (Error 3: found some; Error 4: no database, nothing checked)
	@mkdir -p bin
	@cd tools/vulncheck && go build -o ../../bin/vulncheck .
	@cd tools/vulncheck && ../../bin/vulncheck ../.. ./cmd/...

.PHONY: test-tools
test-tools: ## the tests of install, images, licences and vulncheck
	cd tools/install && go test ./...
	cd tools/images && go test ./...
	cd tools/licences && go test ./...
	cd tools/vulncheck && go test ./...

.PHONY: generate
generate: $(PYTHON) ## rewrite generated files: protobuf, deep copies, the CRD
	tools/generate/generate.sh $(CURDIR)/$(PYTHON)

$(PYTHON): tools/python/requirements.txt
	python3 -m venv bin/venv
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --requirement tools/python/requirements.txt
	@touch $(PYTHON)

.PHONY: clean
clean: ## remove everything that was built here (the cache of real parts stays)
	rm -rf bin
