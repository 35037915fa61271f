# The entry points of csd-emu. `make` alone prints them.

ENGINE ?= qemu
QUICKSTART := examples/quickstart
# Two processes share the tests: many wait for others, and those on virtual machines go on beside the rest.
PYTEST := .venv/bin/pytest --numprocesses=2

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory --no-builtin-rules

.PHONY: help run unit coverage test test-third test-all lint types format docs docs-serve bench bench-compose test-compose clean setup-qemu setup-native setup-dev

help:
	@echo 'make run [ENGINE=native]   start an array of emulated drives, train on it, report, clean up'
	@echo '                           ENGINE=qemu (default): virtual machines; native: processes, no root, no QEMU'
	@echo 'make unit [ARGS=...]       the fast tests of the code alone, in a minute: no root, no process, no network'
	@echo 'make coverage [ARGS=...]   how much of the code all unit tests run, branches included'
	@echo 'make test [ARGS=...]       the tests, real virtual machines included, without the long ones'
	@echo 'make test-third [ARGS=...] of the long tests a third, which the commit chooses, and those of what changed'
	@echo 'make test-all [ARGS=...]   all tests'
	@echo 'make lint types format     check the style, check the types, apply the style'
	@echo 'make docs [docs-serve]     the documentation as a site, in build/site; or served, and built again when it changes'
	@echo 'make test-compose          the stack of docker-compose.yml in real containers, from build to down'
	@echo 'make bench-compose         what building and starting that stack costs, as JSON'
	@echo 'make bench NAME=...        one benchmark, its figures as JSON'
	@echo 'make clean                 remove caches and build products; runs/ and .venv stay'
	@echo
	@echo 'Each installs what it needs and is missing: see docs/install.md.'

# `exec` makes the command make's own child, so that Ctrl-C and its exit code pass through no shell.
run:
ifeq ($(filter $(ENGINE),qemu native),)
	@echo 'make run: unknown ENGINE=$(ENGINE): choose qemu or native' >&2; exit 2
else
	@$(MAKE) setup-$(ENGINE)
	@exec .venv/bin/csd-emu run $(QUICKSTART)/job.yaml --array $(QUICKSTART)/array.yaml --engine $(ENGINE)
endif

# These install nothing, for that may ask for root.
unit: .venv/bin/pytest
	@exec $(PYTEST) --hypothesis-profile=quick -m 'not slow and not long' tests/unit $(ARGS)

coverage: .venv/bin/pytest
	@exec $(PYTEST) --cov --cov-report=term:skip-covered -m 'not long' tests/unit $(ARGS)

.venv/bin/pytest:
	@echo 'make: there is no $@: run make setup-dev first' >&2; exit 2

test: setup-dev
	@exec $(PYTEST) -m 'not long' $(ARGS)

test-third: setup-dev
	@exec $(PYTEST) --third $(ARGS)

# The containers' tests run even if others failed; the first failure's exit code counts.
test-all: setup-dev
	@$(PYTEST) --hypothesis-profile=explore -m 'not compose' $(ARGS); code=$$?; \
	$(MAKE) test-compose || code=$$(($$code ? $$code : $$?)); exit $$code

# These install and start a Docker engine if none answers, and end the one that they started. Wheels are fetched with
# this machine's pip, which may know more places than a container's.
test-compose: setup-dev
	@scripts/fetch-wheels
	@exec scripts/with-docker .venv/bin/pytest -m compose $(ARGS)

bench-compose: setup-dev
	@scripts/fetch-wheels
	@exec scripts/with-docker sh -c 'for name in compose scrape page; do .venv/bin/csd-emu bench $$name --json || exit; done'

lint: setup-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --no-logo --cache-dir .ruff_cache/imports

types: setup-dev
	.venv/bin/mypy

format: setup-dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# The variable silences what the theme says of the next major version of mkdocs, which is not asked for here.
docs: setup-dev
	@.venv/bin/python -m csd_lab.generate.reference
	@NO_MKDOCS_2_WARNING=1 exec .venv/bin/mkdocs build

docs-serve: setup-dev
	@NO_MKDOCS_2_WARNING=1 exec .venv/bin/mkdocs serve

bench:
ifeq ($(NAME),)
	@echo 'make bench: which one? For example: make bench NAME=repeatability' >&2; exit 2
else
	@$(MAKE) setup-qemu
	@exec .venv/bin/csd-emu bench $(NAME) --json $(ARGS)
endif

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find . -name .venv -prune -o -name runs -prune -o -name __pycache__ -type d -exec rm -rf {} +

setup-native:
	@scripts/install-system-packages --only native
	@scripts/setup-python native

setup-qemu:
	@scripts/install-system-packages
	@scripts/setup-python qemu

setup-dev:
	@scripts/install-system-packages --dev
	@scripts/setup-python dev
