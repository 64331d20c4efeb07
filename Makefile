# IronWarp. Everything here is a Go program; this file only names them.

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X main.version=$(VERSION)
# The version comes from LDFLAGS; Go's own stamping fails in clones that belong to another user.
BUILD := $(GO) build -trimpath -buildvcs=false

# One place to move the linter's version; `go run` fetches exactly this one.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0

.PHONY: help build rdma csi kube install install-files uninstall packages release test nightly fuzz demo bench judge newcomer interop lint fmt clean need-go

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' Makefile

need-go:
	@command -v $(GO) >/dev/null || { echo "make: Go 1.26 or later is needed, and '$(GO)' is not in PATH: https://go.dev/dl/" >&2; exit 1; }

build: need-go ## build bin/ironwarp
	@mkdir -p bin
	$(BUILD) -ldflags '$(LDFLAGS)' -o bin/ironwarp ./cmd/ironwarp

rdma: need-go ## build bin/rdma, the libraries with which `ironwarp run` runs programs of libibverbs; needs gcc, libibverbs-dev and librdmacm-dev
	$(GO) run ./internal/tools/rdmalib -out bin/rdma

csi: need-go ## build bin/ironwarp-csi, the plugin for Kubernetes (docs/kubernetes.md)
	@mkdir -p bin
	cd csi && CGO_ENABLED=0 $(BUILD) -ldflags '$(LDFLAGS)' -o $(CURDIR)/bin/ironwarp-csi ./cmd/ironwarp-csi

kube: need-go ## follow docs/kubernetes.md in a cluster without kubelets, as root: builds Kubernetes' own programs and the sidecars, in ten minutes the first time
	@cd csi && IRONWARP_KUBE=$(CURDIR)/.cache/kube $(GO) test -count=1 -v -timeout 60m -run '^TestCluster$$' ./driver

# The unit names /usr/bin/ironwarp, so there is no PREFIX; DESTDIR is for packagers.
install: build ## install the program, what `make rdma` has built, systemd units, udev rule, completion and a first configuration (DESTDIR)
	@$(MAKE) --no-print-directory install-files
	@[ -n "$(DESTDIR)" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload

# What is installed, of a program that is built: also for packages, whose program may be for another processor, so that HOST_PROGRAM writes its manual.
PROGRAM := bin/ironwarp
HOST_PROGRAM := $(PROGRAM)
RDMA := bin/rdma
install-files:
	install -D -m 0755 $(PROGRAM) $(DESTDIR)/usr/bin/ironwarp
	install -D -m 0644 -t $(DESTDIR)/usr/lib/systemd/system packaging/ironwarp.service packaging/ironwarp.socket
	install -D -m 0644 -t $(DESTDIR)/usr/lib/udev/rules.d packaging/90-ironwarp.rules
	install -D -m 0644 cmd/ironwarp/completion.bash $(DESTDIR)/usr/share/bash-completion/completions/ironwarp
	install -D -m 0644 cmd/ironwarp/completion.zsh $(DESTDIR)/usr/share/zsh/site-functions/_ironwarp
	install -D -m 0644 cmd/ironwarp/completion.fish $(DESTDIR)/usr/share/fish/vendor_completions.d/ironwarp.fish
	install -D -m 0644 -t $(DESTDIR)/usr/share/ironwarp/wireshark packaging/wireshark/ironwarp.lua
	install -D -m 0755 -t $(DESTDIR)/usr/share/ironwarp/wireshark packaging/wireshark/ironwarp-extcap
	install -D -m 0644 -t $(DESTDIR)/usr/share/ironwarp/prometheus packaging/prometheus/ironwarp.rules.yml
	install -D -m 0644 -t $(DESTDIR)/usr/share/ironwarp/grafana packaging/grafana/ironwarp.json
	@install -d -m 0755 $(DESTDIR)/usr/share/man/man8
	$(HOST_PROGRAM) man --dir $(DESTDIR)/usr/share/man/man8
	[ ! -d $(RDMA) ] || install -D -m 0644 -t $(DESTDIR)/usr/lib/ironwarp $(RDMA)/libibverbs.so.1 $(RDMA)/libironwarp-rnic.so
	@install -d -m 0700 $(DESTDIR)/etc/ironwarp
	@[ -e $(DESTDIR)/etc/ironwarp/ironwarp.yaml ] || install -m 0600 packaging/ironwarp.yaml $(DESTDIR)/etc/ironwarp/ironwarp.yaml

uninstall: ## stop the daemon and remove what install brought; /etc/ironwarp and /var/lib/ironwarp stay (DESTDIR)
	@[ -n "$(DESTDIR)" ] || [ ! -d /run/systemd/system ] || systemctl disable --now ironwarp.service ironwarp.socket
	rm -f $(DESTDIR)/usr/bin/ironwarp $(DESTDIR)/usr/lib/systemd/system/ironwarp.service $(DESTDIR)/usr/lib/systemd/system/ironwarp.socket $(DESTDIR)/usr/lib/udev/rules.d/90-ironwarp.rules \
		$(DESTDIR)/usr/share/bash-completion/completions/ironwarp $(DESTDIR)/usr/share/zsh/site-functions/_ironwarp \
		$(DESTDIR)/usr/share/fish/vendor_completions.d/ironwarp.fish $(DESTDIR)/usr/share/man/man8/ironwarp.8 $(DESTDIR)/usr/share/man/man8/ironwarp-*.8 \
		$(DESTDIR)/usr/lib/ironwarp/libibverbs.so.1 $(DESTDIR)/usr/lib/ironwarp/libironwarp-rnic.so
	rm -rf $(DESTDIR)/usr/share/ironwarp
	@[ ! -d $(DESTDIR)/usr/lib/ironwarp ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)/usr/lib/ironwarp
	@[ -n "$(DESTDIR)" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
	@echo "/etc/ironwarp and /var/lib/ironwarp stay, with the secrets in them, and so do the guards of peers, until the next boot"

# The tool is a module of its own. ARCH is amd64 or arm64, or both with a comma.
PACKAGES = cd internal/tools/packages && $(GO) run . -top '$(CURDIR)' -out '$(or $(OUT),$(CURDIR)/dist)' -version '$(VERSION)'

packages: need-go ## write deb and rpm packages and their SBOM to dist/, the same bytes wherever they are built (ARCH=arm64, VERSION=1.2.3)
	@$(PACKAGES) $(if $(ARCH),-arch '$(ARCH)')

release: need-go ## packages for amd64 and arm64, an apt repository, a container image, the source, SBOMs and SHA256SUMS in dist/ (KEY=... signs the repository)
	@$(PACKAGES) -arch '$(or $(ARCH),amd64 arm64)' -release -key '$(KEY)'

test: need-go ## all tests that can run here; as root it installs what they need
	@$(GO) run ./internal/tools/deps -optional test
	@mkdir -p .cache
	@$(BUILD) -o .cache/testreport ./internal/tools/testreport
	@.cache/testreport -summary .cache/test-summary $(ARGS) $(PKG)

nightly: need-go ## everything in full, for hours, as root: long storms and histories, all tests in both builds, interop, newcomer
	IRONWARP_STORM=1000 IRONWARP_HISTORY_TIME=10m IRONWARP_PATHS=1 $(MAKE) test ARGS='-whole -timeout 60m'
	$(MAKE) interop ARGS=-whole
	$(MAKE) interop ARGS='-part mounted'
	$(MAKE) kube
	$(MAKE) newcomer

fuzz: need-go ## run every fuzz target for a while (TIME=2m each, PKG=./verbs, RUN=name)
	@$(GO) run ./internal/tools/fuzz -time '$(or $(TIME),2m)' -run '$(RUN)' $(PKG)

demo: need-go ## the main job on two hosts in namespaces, as root (ARGS=--keep to look around, ARGS=--paths=2 for two paths of which each is cut, PROFILE=rfc3723, TRANSPORT=sctp-udp)
	@[ "$$(id -u)" = 0 ] || { echo "make demo makes network namespaces and two strongSwans in them, which takes root: sudo make demo" >&2; exit 1; }
	@$(GO) run ./internal/tools/deps demo
	@$(MAKE) --no-print-directory -s build rdma
	@mkdir -p .cache
	@$(BUILD) -o .cache/demo ./integration/demo
	@.cache/demo -profile '$(PROFILE)' -transport '$(TRANSPORT)' $(ARGS)

bench: need-go build ## the speed table beside its rivals (ROWS=regexp to choose)
	@$(GO) run ./internal/tools/deps -optional bench
	@mkdir -p .cache
	@$(BUILD) -o .cache/bench ./bench
	@[ ! -e /usr/include/infiniband/verbs.h ] || $(MAKE) --no-print-directory -s rdma
	@rm -f .cache/pion; cd transport/sctp/piontest && $(BUILD) -o $(CURDIR)/.cache/pion ./bench || true
	@.cache/bench -rows '$(ROWS)' $(ARGS)

judge: need-go ## the tester's own tables, in docs/iscsitest-tables.md: our target and those of tgt, gotgt and Linux, beside libiscsi's suite, and whether it finds each of some 190 faults that ours is given; twenty minutes
	@printf '%s\n' '# What the tester has found' '' 'Written by `make judge`. [iscsitest.md](iscsitest.md) says what the groups are, and confirms what is said of tgt and of Linux.' >docs/iscsitest-tables.md
	@[ -d .cache/vm ] || echo "without the virtual machine of make interop the kernel's own target is left out, and tgt over iSER"
	IRONWARP_TABLES=$(CURDIR)/docs/iscsitest-tables.md IRONWARP_MUTANTS=1 $(GO) test -count=1 -v -timeout 3h -run '^(TestOurTarget|TestTGT|TestGotgt|TestAgreement|TestMutants)$$' ./iscsitest
	IRONWARP_TABLES=$(CURDIR)/docs/iscsitest-tables.md IRONWARP_VM_CACHE=$(if $(wildcard .cache/vm),$(CURDIR)/.cache/vm) $(GO) test -count=1 -v -timeout 40m -run '^(TestLIO|TestTGTISER)$$' ./integration/initiators

newcomer: need-go ## follow README and the pages of docs/tasks on bare Debian machines to the letter, and install the packages there, as root (RUN=Demo, Test, TwoHosts, Packages, TaskLink, TaskISCSI, TaskJudge or TaskPrograms alone); needs the way to Debian's mirror
	@[ "$$(id -u)" = 0 ] || { echo "make newcomer boots machines with systemd, which takes root: sudo make newcomer" >&2; exit 1; }
	@$(GO) run ./internal/tools/deps newcomer
	@IRONWARP_NEWCOMER=$(or $(WHEN),always) $(GO) test -v -count=1 -timeout 90m -run '^Test$(if $(RUN),($(RUN))$$)' ./integration/newcomer

interop: need-go ## prove the stack against Linux' soft-iWARP, over its ESP and its SCTP in virtual machines, as root (ARGS=-whole runs the largest tables in full and writes docs/interop.md)
	@[ "$$(id -u)" = 0 ] || { echo "make interop shows this machine's files to a virtual machine, which takes root: sudo make interop" >&2; exit 1; }
	@$(GO) run ./internal/tools/deps interop
	@$(MAKE) --no-print-directory -s build
	@mkdir -p .cache
	@$(BUILD) -o .cache/interop ./integration/interop
	@for p in integration/ipsectest integration/chaos integration/history integration/initiators integration/programs integration/newcomer integration/peers integration/ibsimnet integration/selinux transport transport/ksctp verbs; do \
		$(GO) test -c -trimpath -buildvcs=false -o .cache/$${p##*/} ./$$p || exit; done
	@cd csi && $(GO) test -c -trimpath -buildvcs=false -o ../.cache/csi ./driver
	@$(BUILD) -o .cache/demo ./integration/demo
	@.cache/interop -document docs/interop.md -matrix docs/ipsec-matrix.md $(ARGS)

lint: need-go build ## gofmt, vet, staticcheck, other processors, and the project's own checks
	@bad=0; \
	out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt -w these files:"; echo "$$out"; bad=1; fi; \
	$(GO) vet ./... || bad=1; \
	for a in arm64 riscv64 386; do GOARCH=$$a $(GO) build ./... || bad=1; done; \
	GOARCH=386 $(GO) vet ./... || bad=1; \
	$(GO) run $(STATICCHECK) ./... || bad=1; \
	(cd internal/tools/packages && $(GO) vet . && $(GO) run $(STATICCHECK) .) || bad=1; \
	(cd csi && $(GO) vet ./... && GOARCH=386 $(GO) vet ./... && GOARCH=arm64 $(GO) build ./... && $(GO) run $(STATICCHECK) ./...) || bad=1; \
	$(GO) run ./internal/tools/lint -binary bin/ironwarp || bad=1; \
	exit $$bad

fmt: need-go ## gofmt all files
	@gofmt -w $$(git ls-files '*.go')

clean: ## remove what make built
	rm -rf bin dist .cache bench/latest.json
