PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: pythons demo docs examples verdict programs check test slow bench accuracy published kernels unseen scores stand-ins clean

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --disable-pip-version-check --quiet "torch==2.13.0"
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --disable-pip-version-check --quiet --editable ".[dev]"
	touch $@

pythons:  ## the package alone, without torch, under every Python at hand: installed, imported, simulated, compared
	@for version in 3.11 3.12 3.13; do \
	  for python in python$$version $(HOME)/.pyenv/versions/$$version.*/bin/python ""; do \
	    test -z "$$python" || { $$python -c "" 2>/dev/null && break; }; \
	  done; \
	  test -n "$$python" || { echo "Python $$version: not here"; continue; }; \
	  place=$$(mktemp -d) && $$python -m venv $$place/venv && \
	  $$place/venv/bin/pip install --disable-pip-version-check --quiet . && \
	  (cd $$place && env -u PYTHONPATH venv/bin/python $(CURDIR)/tests/lib/smoke.py) && rm -rf $$place || exit 1; \
	done

demo: $(VENV)/.ready  ## the main job on the embedded scenario: methods predicted, run and trained; a verdict and a report
	mkdir -p reports-out
	$(BIN)/halocast calibrate --quick --out reports-out/demo.toml | tail -n 1
	$(BIN)/halocast compare --execute --accuracy --methods vanilla,pipegcn,digest,bns,gnnpipe,psc --scaling 10 \
	  --profile reports-out/demo.toml --out reports-out/demo

docs: $(VENV)/.ready  ## the pictures of docs/ again, from the embedded scenario (needs chromium)
	$(BIN)/halocast compare --out reports-out/docs
	$(BIN)/python benchmarks/screenshots.py reports-out/docs docs/images

examples: $(VENV)/.ready  ## the README's example again; a test compares it with what the command prints
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python benchmarks/into_docs.py --run plan

verdict: $(VENV)/.ready  ## README's answer about ogbn-products and its picture, and the whole of it in docs/converge.md (minutes)
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python benchmarks/into_docs.py --run converge
	cp reports-out/verdict/score.png docs/images/converge.png
	$(BIN)/python benchmarks/answer.py reports-out/verdict/answer.json | $(BIN)/python benchmarks/into_docs.py verdict

programs:  ## chromium and redis for the tests that use them, where the distribution has them and we may install them
	@command -v chromium >/dev/null && command -v redis-server >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium redis-server; } >/dev/null 2>&1 || \
	  echo "chromium or redis-server is missing: the tests that use them will be skipped"

check: $(VENV)/.ready  ## the checks that take seconds; pre-commit runs the same
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check  ## every check CI runs
	$(BIN)/pytest -m "not slow" -n 2

slow: $(VENV)/.ready  ## checks that take minutes
	$(BIN)/pytest -m slow

bench: $(VENV)/.ready  ## prints the figures of docs/performance.md and puts them there
	$(BIN)/python benchmarks/graph_build.py
	$(BIN)/python benchmarks/exec_overhead.py | tee -a /dev/stderr | $(BIN)/python benchmarks/into_docs.py overhead
	$(BIN)/python benchmarks/virtual.py --data $(or $(DATA),../shared/data) | tee -a /dev/stderr | $(BIN)/python benchmarks/into_docs.py virtual
	$(BIN)/python benchmarks/links.py | tee -a /dev/stderr | $(BIN)/python benchmarks/into_docs.py links
	$(BIN)/python benchmarks/scale.py | tee -a /dev/stderr | $(BIN)/python benchmarks/into_docs.py scale

accuracy: $(VENV)/.ready  ## the model's errors again, into docs/accuracy.md and the error bands (20 minutes; as root, machine idle)
	mkdir -p reports-out
	$(BIN)/halocast calibrate --out reports-out/profile.toml | grep -v ^profile: | tee -a /dev/stderr | \
	  $(BIN)/python benchmarks/into_docs.py calibrate
	$(BIN)/halocast validate --quick --profile reports-out/profile.toml --out reports-out/validate | grep -vE '^(report:|Predicted with)' | tee -a /dev/stderr | \
	  $(BIN)/python benchmarks/into_docs.py validate
	$(BIN)/halocast validate --profile reports-out/profile.toml --out reports-out/grid | sed -n '/^by /,$$p' | grep -v '^Predicted with' | tee -a /dev/stderr | \
	  $(BIN)/python benchmarks/into_docs.py grid
	$(MAKE) published
	$(BIN)/python benchmarks/accuracy.py --runs reports-out/grid/validate.json
	$(MAKE) examples

published: $(VENV)/.ready  ## published figures again: the page, docs/accuracy.md and the evidence of error bands (2 minutes)
	$(BIN)/halocast published --brief --out reports-out/published | tee -a /dev/stderr | \
	  $(BIN)/python benchmarks/into_docs.py published
	$(BIN)/halocast published --brief --code halocast --out reports-out/published-ours | tee -a /dev/stderr | \
	  $(BIN)/python benchmarks/into_docs.py published_ours
	$(BIN)/python benchmarks/accuracy.py --published reports-out/published/results.json

unseen: $(VENV)/.ready  ## the same for real graphs and attention: DATA is a directory with pubmed.npz and amazon-computers.npz
	$(BIN)/halocast validate --profile reports-out/profile.toml --out reports-out/unseen --rounds 1 --links 1gbit,own \
	  --models sage,gat --graphs $(DATA)/pubmed.npz,$(DATA)/amazon-computers.npz \
	  --methods vanilla,pipegcn,bns,digest,gnnpipe | sed -n '/scenarios were compared/,$$p' | grep -v '^Predicted with' | tee -a /dev/stderr | \
	  $(BIN)/python benchmarks/into_docs.py unseen

kernels: $(VENV)/.ready  ## the constants of kernels fitted again, and their errors on what was left out, into docs/accuracy.md
	$(BIN)/python benchmarks/compute_fit.py $(SHARED) | tee -a /dev/stderr | $(BIN)/python benchmarks/into_docs.py kernels

scores: $(VENV)/.ready  ## scores of all methods on real graphs, into docs/scores.md (45 minutes on two cores; goes on where it was)
	$(BIN)/python benchmarks/scores.py --data $(DATA) $(SCORES) | tee -a /dev/stderr | \
	  $(BIN)/python benchmarks/into_docs.py scores

stand-ins: $(VENV)/.ready  ## whether stand-ins tell the truth, into docs/stand-ins.md (goes on where it was)
	$(BIN)/python benchmarks/stand_ins.py --data $(DATA) | tee -a /dev/stderr | \
	  $(BIN)/python benchmarks/into_docs.py standins
	$(BIN)/python benchmarks/published_curves.py --published $(DATA)/../published --sources psc | tee -a /dev/stderr | \
	  $(BIN)/python benchmarks/into_docs.py curves

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info reports-out
