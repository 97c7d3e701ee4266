# The front door. Every target does the set-up that it needs, once.
#   CYFA_TORCH_DIR  the folder of a Python package torch to build against, in place of .venv's
#   JOBS            compile jobs and test jobs at a time
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTHON := $(if $(CYFA_TORCH_DIR),python3,.venv/bin/python)
SETUP := build/.setup-done
export JOBS PYTHON

.PHONY: help demo test build bench parity baselines-doc tokenizer format lint gpu-test gpu-bench setup clean

help:
	@echo "make demo       set up, build, check this machine, draw a picture, measure: start here"
	@echo "make test       build, all tests, the sanitizer build of the tests, the CUDA compile check"
	@echo "make build      the program build/cyfa and the library build/libcyfa_ops.so"
	@echo "make bench      speed and memory of the operators, beside yardsticks; writes build/bench.json"
	@echo "make parity     trains every mixer on the same bytes for some minutes each: a table of losses and speeds"
	@echo "make tokenizer  fetch the Mistral tokenizer (32,000 pieces) to build/tokenizer.model"
	@echo "make gpu-test   the tests that need an NVIDIA GPU (set CYFA_TORCH_DIR to a CUDA build of torch)"
	@echo "make gpu-bench  the operator's speed on that GPU"
	@echo "make format     clang-format over the sources"
	@echo "make lint       clang-tidy over apps/, cyfa/ and bench/"
	@echo "make setup      system packages and .venv with the pinned torch; needs the network the first time"
	@echo "make clean      remove what was built (not .venv)"

setup: $(SETUP)

$(SETUP): scripts/setup.sh scripts/requirements.txt
	@scripts/setup.sh
	@mkdir -p $(@D) && touch $@

build: $(SETUP)
	@echo "== building (preset release, $(JOBS) jobs; the first time takes some minutes)"
	@cmake --preset release > build/configure.log || { cat build/configure.log; exit 1; }
	@cmake --build --preset release --parallel $(JOBS) --target cyfa

demo: build
	@scripts/demo.sh

test: build
	@cmake --build --preset release --parallel $(JOBS)
	@scripts/test.sh

bench: build
	@scripts/bench.sh

parity: build
	@scripts/parity.py

baselines-doc: build
	@scripts/baselines_doc.py build/cyfa

tokenizer: $(SETUP)
	@scripts/tokenizer.sh

gpu-test:
	@scripts/gpu.sh test

gpu-bench:
	@scripts/gpu.sh bench

format: $(SETUP)
	@scripts/setup.sh clang-format
	@echo "== formatting"
	@find apps bench cyfa tests -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | sort | xargs clang-format -i

lint: build
	@scripts/setup.sh clang-tidy
	@scripts/lint.sh

clean:
	@echo "== removing build, build-asan, build-cuda"
	@rm -rf build build-asan build-cuda build-debug
