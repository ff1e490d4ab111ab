# make demo    the whole path on synthetic scenes, on the CPU    make build   notebooks, library and README
# make test    everything that a change must pass                make check   is all of that as built? (seconds)
# The environment is .venv in this folder; another Python: make PYTHON=python3.12 ...

PYTHON ?= python3
BIN := .venv/bin
MADE := .venv/.made

.PHONY: demo test check build
.DEFAULT_GOAL := demo

demo: $(MADE)
	$(BIN)/python tools/demo.py

test: export OMP_WAIT_POLICY = PASSIVE
test: $(MADE)
	$(BIN)/python tools/nbs.py check
	$(BIN)/python tools/nbs.py test
	$(BIN)/python -m pytest

check: $(MADE)
	$(BIN)/python tools/nbs.py check
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_house.py

build: $(MADE)
	$(BIN)/python tools/nbs.py format

$(MADE): constraints.txt settings.ini setup.py
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "mshnet needs Python 3.11 or newer, $(PYTHON) is %d.%d: give another, as in make PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@
