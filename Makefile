# make demo      the whole path on synthetic scenes, on the CPU   make build  notebooks, library and README
# make test      what a change needs, without XLA                 make check  is all of that as built? (a minute)
# make test-all  everything: what a merge must pass               make test-xla  XLA alone, without a TPU
# make outputs   execute the lessons and guides that changed, and store their outputs (one page:
#                tools/nbs.py execute nbs/01_loss.py; all: up to ten minutes); commit what it writes
# make docs      the site in _docs/: pages with their outputs, links checked
# make wheel     the library in one file, dist/mshnet-*.whl, to upload beside a runner
# make matrix    the tests with other Pythons and packages, into results/environments (hours)
# make faults    200 runs killed or disturbed, 2,000 invented inputs for each reader (half an hour)
# Environments in this folder: .venv, and .venv-xla (torch_xla, 7 GB). Another Python: make PYTHON=python3.12 ...

PYTHON ?= python3
BIN := .venv/bin
MADE := .venv/.made
XLA := .venv-xla/bin
XLA_MADE := .venv-xla/.made
XLA_RUNS_HERE := $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m))

# uv installs in a minute what takes pip several; where uv fails, pip does it.
LINKS = $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
INSTALL = install() { bin=$$1; shift; \
	{ $$bin/python -m pip install --quiet -c $$2 uv && \
	$$bin/uv pip install --quiet --python $$bin/python $(addprefix --find-links ,$(LINKS)) "$$@"; } || \
	$$bin/python -m pip install --quiet "$$@"; }; install

CHOSEN = -m 'not nightly'

.PHONY: demo test test-xla test-xla-aside test-all faults check build outputs docs wheel matrix
.DEFAULT_GOAL := demo

demo: $(MADE)
	$(BIN)/python tools/demo.py

test: export OMP_NUM_THREADS ?= 1
test: $(MADE)
	$(BIN)/python tools/nbs.py check
	$(BIN)/python tools/nbs.py test
	$(BIN)/python -m pytest -n 2 --dist loadfile $(CHOSEN)

# Both halves at once, XLA's on the time that is left. Its words come when it ends; the main tests'
# are the last lines.
test-all:
	@$(MAKE) --no-print-directory -j2 CHOSEN= test test-xla-aside

test-xla-aside:
	@log=$$(mktemp); nice $(MAKE) --no-print-directory test-xla >$$log 2>&1; status=$$?; \
	if [ $$status = 0 ]; then tail -n 1 $$log; else cat $$log; fi; rm -f $$log; exit $$status

test-xla: export OMP_NUM_THREADS ?= 1
ifeq ($(XLA_RUNS_HERE),)
test-xla:
	@echo "skipped: torch_xla exists for Linux on x86-64 alone"
else
test-xla: $(XLA_MADE)
	$(XLA)/python -m pytest -p no:cacheprovider tests/xla
endif

faults: $(MADE)
	$(BIN)/python tools/faults.py --rounds 200
	$(BIN)/python tests/fuzz.py 2000 $$(date +%s)

matrix:
	$(PYTHON) tools/matrix.py

check: $(MADE)
	$(BIN)/python tools/nbs.py check
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_house.py tests/test_scores.py

build: $(MADE)
	$(BIN)/python tools/nbs.py format
	$(BIN)/python tools/scores.py

outputs: $(MADE)
	$(BIN)/python tools/nbs.py execute

# With any Python that has pip; without build/, whose files of another day would get in
wheel:
	@$(RECENT)
	rm -rf build
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls -t dist/mshnet-*.whl | head -n 1

docs: export OMP_NUM_THREADS ?= 1
docs: $(MADE)
	$(BIN)/python tools/nbs.py docs

RECENT = $(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "mshnet needs Python 3.11 or newer, $(PYTHON) is %d.%d: give another, as in make PYTHON=python3.12" % v[:2])'

$(XLA_MADE): constraints-xla.txt settings.ini setup.py
	@$(RECENT)
	test -x $(XLA)/python || $(PYTHON) -m venv .venv-xla
	$(INSTALL) $(XLA) -c constraints-xla.txt -e '.[notebook]' torch_xla pytest
	@touch $@

$(MADE): constraints.txt settings.ini setup.py
	@$(RECENT)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) $(BIN) -c constraints.txt -e '.[dev,browser]'
	@touch $@
