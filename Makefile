# The tasks of a contributor; CONTRIBUTING.md explains them. Each is one or two commands that can be typed without make.
.PHONY: setup test check page bench docs
BENCH ?= decode

setup: # an editable install: what you edit is what runs
	pip install -e '.[dev]'
	pip install -e '.[docs]'

test: # all tests; a folder alone: pytest tests/ops
	pytest -n 3

check: # what a commit must pass besides tests
	ruff check
	ruff format --check
	mypy

page: # the page: its types and tests, then src/pellucid/web from web/
	cd web && npm ci --no-audit --no-fund && npm run check && npm test && npm run build

bench: # one of benchmarks/: make bench BENCH=capture
	python benchmarks/$(BENCH).py

docs: # the site, in build/site
	mkdocs build --strict
