#!/bin/bash
# scripts/gpu.sh test|bench: builds with CUDA into build-cuda and runs the GPU tests or the operator's benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?test or bench}

stop() { echo "make gpu-$what: $*" >&2; exit 1; }

nvidia-smi -L > /dev/null 2>&1 || stop "nvidia-smi -L finds no NVIDIA GPU; run this on a machine that has one"
command -v nvcc > /dev/null || stop "nvcc is not on the PATH; install the CUDA toolkit, 13.0 or later"
if [[ -z ${CYFA_TORCH_DIR:-} ]]; then
  CYFA_TORCH_DIR=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null || true)
fi
[[ -e $CYFA_TORCH_DIR/lib/libtorch_cuda.so ]] ||
  stop "set CYFA_TORCH_DIR to the folder of a CUDA build of torch (it has lib/libtorch_cuda.so)"
export CYFA_TORCH_DIR

echo "== building with CUDA against $CYFA_TORCH_DIR"
cmake --preset cuda
cmake --build --preset cuda --parallel "${JOBS:-$(nproc)}"
case $what in
  test)
    count=$(ctest --test-dir build-cuda -N -L gpu | sed -n 's/^Total Tests: //p')
    echo "== $count GPU tests"
    left_out=()
    python=$(realpath -ms "$CYFA_TORCH_DIR/../../../../bin/python3")
    if ! "$([[ -x $python ]] && echo "$python" || echo python3)" -c 'import pytest, transformers' 2> /dev/null; then
      echo "== SKIPPED: python.gpu and python.gpu_ranks (pytest or transformers is not installed beside this torch)"
      left_out=(-E '^python[.]gpu')
    fi
    ctest --test-dir build-cuda -L gpu "${left_out[@]}" --output-on-failure --no-tests=error
    sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$(command -v nvcc)")/compute-sanitizer")
    if [[ -x $sanitizer ]]; then
      small='Gpu.HopperBackwardOfOne*:Gpu.EqualRuns*:GpuDecode.AMixerInOneLaunch*'
      more='GpuDecode.FewRows*:GpuDecode.Products*:GpuDecode.ASequence*:GpuDecode.AReplayed*:GpuDecode.SomeRows*:Gpu.StepsOf*'
      echo "== memcheck and racecheck on small cases (about four minutes)"
      "$sanitizer" --tool memcheck --error-exitcode 1 build-cuda/tests_gpu --gtest_filter="$small:$more"
      "$sanitizer" --tool racecheck --error-exitcode 1 build-cuda/tests_gpu --gtest_filter="$small:GpuDecode.ProductsOfSome*"
    else
      echo "== SKIPPED: memcheck and racecheck (compute-sanitizer is not installed; it comes with the CUDA toolkit)"
    fi
    build-cuda/cyfa doctor
    ;;
  bench)
    shift
    "${PYTHON:-python3}" bench/gpu_bench.py "$@"
    "${PYTHON:-python3}" scripts/benchmarks_doc.py --program build-cuda/cyfa
    ;;
  *) stop "unknown argument; wanted test or bench" ;;
esac
