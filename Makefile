# Everything there is to do in a checkout; `make help` lists it. Two commands do all the set-up:
# `make demo` and `make test`. Each target builds what it needs and can be run again at any time.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
export PATH := $(CURDIR)/.venv/bin:$(PATH)
SCENARIO ?= default
LINK := collections/ansible_collections/specdec/serving

##@ Use it
.PHONY: demo
demo: bootstrap ## start two local hosts, deploy a speculative-decoding server on one of them, show what it does
	@demo/demo

.PHONY: demo-down
demo-down: link ## take the demo hosts down: no container, network, mount, route or process stays
	@demo/down

##@ Test it
.PHONY: test
test: bootstrap machine ## every test: lint, sanity, unit, integration, molecule
	@python tests/run.py

.PHONY: test-full
test-full: bootstrap machine ## the same, then every supported ansible-core, the core on the oldest Python, and every fault
	@python tests/run.py --full

.PHONY: lint
lint: bootstrap ## ruff, yamllint, ansible-lint, documentation, argument specs, house rules
	@tests/lint/run

.PHONY: sanity
sanity: bootstrap ## ansible-test sanity in a copy of the tree
	@python tests/sanity/run.py

.PHONY: unit
unit: bootstrap machine ## unit tests of the core (no Ansible, no host)
	@python -m pytest -q tests/unit

.PHONY: integration
integration: bootstrap machine ## whole runs against local hosts
	@python -m pytest -q tests/integration

.PHONY: molecule
molecule: bootstrap machine ## one scenario on local hosts: make molecule SCENARIO=default
	@tests/molecule $(SCENARIO)

.PHONY: bench
bench: bootstrap machine ## measure the budgets, as ratios in one run
	@tests/bench

##@ Work on it
.PHONY: build
build: bootstrap ## the collection as a tarball, in build/
	@ansible-galaxy collection build --force --output-path build .

.PHONY: bootstrap
bootstrap: link ## the controller environment .venv (0.1 s when it is current)
	@scripts/bootstrap

.PHONY: machine
machine: ## what hosts and tests need of this machine's packages (0.2 s when it is there)
	@demo/hosts/requirements

.PHONY: requirements
requirements: bootstrap ## lock requirements/controller.in again, with the newest versions that fit
	@scripts/lock-requirements

.PHONY: stacks-check
stacks-check: bootstrap ## compare the table of stacks with what the package indexes hold
	@PYTHONPATH=collections python scripts/stacktable.py check

.PHONY: stacks-add
stacks-add: bootstrap ## add a release to the table of stacks: make stacks-add ENGINE=sglang VERSION=1.2.3
	@PYTHONPATH=collections python scripts/stacktable.py add "$(ENGINE)" "$(VERSION)"

.PHONY: arguments-check
arguments-check: bootstrap ## compare the engines' arguments with released parsers: make arguments-check ENGINE=sglang VERSION=1.2.3
	@PYTHONPATH=collections python scripts/argumenttable.py $(ENGINE) $(VERSION)

# Where a playbook beside deploy.yml finds this checkout as a collection, from any directory and
# whatever ANSIBLE_COLLECTIONS_PATH says.
.PHONY: link
link:
	@[ -L $(LINK) ] || { mkdir -p $(dir $(LINK)) && ln -s ../../.. $(LINK); }

.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
