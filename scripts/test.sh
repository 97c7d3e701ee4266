#!/bin/bash
# The format check, all tests of the release build, the tests under the sanitizers, and the CUDA compile check. CYFA_TEST_FAST=1 skips the
# sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-2}

# Tests run in parallel, so threads that wait should sleep, not spin.
export OMP_WAIT_POLICY=passive

step() { printf '\n== %s\n' "$*"; }

step "format"
scripts/check_format.sh

step "tests (release build)"
ctest --test-dir build --output-on-failure -j "$jobs" -LE gpu --no-tests=error
# ctest hides the output of passing programs: print what they skipped, and why.
awk '/: Skipped$/ { getline; print "SKIPPED: " $0 } /^SKIPPED( \[[0-9]+\]|: )|\(skipped=/' build/Testing/Temporary/LastTest.log |
  sort | uniq -c

if [[ -z ${CYFA_TEST_FAST:-} ]]; then
  step "building the tests with the address and undefined-behaviour sanitizers"
  cmake --preset asan > /dev/null
  cmake --build --preset asan --parallel "$jobs"
  step "tests (sanitizers)"
  UBSAN_OPTIONS=print_stacktrace=1 ctest --test-dir build-asan --output-on-failure -j "$jobs" --no-tests=error \
    -L '^(io|kernels|ops|model|engine|data|decode|train)$'
fi

step "CUDA sources"
scripts/check_cuda.sh

# Some of them are only built with CUDA, so they are counted in the sources; the contracts of ops and engines are two more programs.
gpu=$(cat tests/gpu/*_test.cc | grep -c '^TEST')
step "passed. SKIPPED: $gpu GPU tests and the contracts of ops and engines on a GPU (they need one: make gpu-test)"
