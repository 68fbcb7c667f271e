# Two commands set up everything they need in .venv and then do their job: make demo, make test.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(abspath $(VENV))/bin
DEMO := .demo

.PHONY: demo test test-all lint typecheck unit slow docs docs-write fuzz freeze clean

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.runtime: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime pyproject.toml measure/pyproject.toml
	$(BIN)/python -m pip install --quiet --no-deps --editable measure
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

# The main job on the embedded data: logs -> archive -> splits -> forecasts -> scores -> board.
demo: $(VENV)/.runtime
	@mkdir -p $(DEMO)
	@cd $(DEMO) && PATH="$(BIN):$$PATH" bash ../tools/demo.sh

test: $(VENV)/.dev lint typecheck unit

# The tests of engines, attacks and kills besides, some minutes more: what continuous integration runs.
test-all: test slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/mypy --config-file tools/mypy.ini benchmarks tools

# Three processes for two cores: a third of the suite's time is waiting, for servers, workers and time limits.
unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --dist worksteal

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "slow and not gpu"

# The documentation, in site/; its search needs a server: python -m http.server -d site. Generated lists and words are
# checked first; make docs-write makes the lists anew.
$(VENV)/.docs: $(VENV)/.runtime pyproject.toml
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

# Pages without generated text.
HANDWRITTEN := README.md $(filter-out $(patsubst %,docs/%.md,api commands findings metrics recipes tables),$(wildcard docs/*.md))

docs: $(VENV)/.docs
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/prose.py
	$(BIN)/proselint check --config tools/proselint.json $(HANDWRITTEN)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-write: $(VENV)/.runtime
	$(BIN)/python tools/docs.py

# Attacks with mutated logs, forecasts, builds and hostile programs: make fuzz MINUTES=10 SEED=7
fuzz: $(VENV)/.dev
	$(BIN)/python tests/fuzz --minutes $(or $(MINUTES),2) --seed $(or $(SEED),1)

# The shipped archive is built and the rows of all its splits are frozen in splits/frozen/VERSION.
freeze: $(VENV)/.runtime
	rm -rf $(DEMO)/freeze
	$(BIN)/kernel-archive build --out $(DEMO)/freeze/kernels
	$(BIN)/python -c "from kernel_archive.selection.freeze import freeze; print(*freeze('$(DEMO)/freeze/kernels'), sep='\n')"

clean:
	rm -rf $(VENV) $(DEMO) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
