#!/bin/bash
# Compiles every CUDA source for sm_90a, on any machine with nvcc, and prints each kernel's registers, shared memory and stack. Warnings and
# register spills are errors.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(find cyfa -name '*.cu' | sort)
if ! command -v nvcc > /dev/null; then
  echo "SKIPPED: nvcc not found; ${#sources[@]} CUDA sources were not compiled"
  exit 0
fi
if [[ ${#sources[@]} -eq 0 ]]; then
  echo "no CUDA sources under cyfa/: nothing to compile"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compiler=nvcc
if command -v ccache > /dev/null; then compiler="ccache nvcc"; fi  # the cache also keeps the compiler's messages
flags=$(< cmake/cuda_flags.txt)
export folder compiler flags

place_of() { echo "$folder/${1//\//_}"; }
compile() {
  local place
  place=$(place_of "$1")
  # shellcheck disable=SC2086  # both are lists of words
  $compiler $flags -gencode arch=compute_90a,code=sm_90a -Xptxas -v -I. -c "$1" -o "$place.o" > "$place.log" 2>&1 || touch "$place.failed"
}
export -f compile place_of
printf '%s\n' "${sources[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'compile {}'

failed=0
printf '%-72s %9s %7s %7s %7s\n' kernel registers smem stack spills
for source in "${sources[@]}"; do
  log=$(place_of "$source").log
  if [[ -e $(place_of "$source").failed ]]; then
    cat "$log"
    echo "FAILED: $source does not compile"
    failed=1
    continue
  fi
  grep -vE '^(ptxas|nvcc) info|bytes stack frame|^ *$' "$log" || true
  # After a kernel's "Compiling entry function" line, "Function properties" and "Used" come in either order.
  awk -v source="$source" '
    function flush_kernel() {
      if (name == "") return
      printf "%s\t%s\t%s\t%s\t%s\n", name, registers, smem, stack, spills
      name = ""
    }
    /Compiling entry function/ { flush_kernel(); split($0, q, "\047"); name = q[2]; registers = "?"; smem = 0; stack = 0; spills = 0 }
    /bytes stack frame/ && name != "" { stack = $1; spills = $5 + $9 }
    /Used [0-9]+ registers/ && name != "" {
      for (i = 1; i <= NF; ++i) {
        if ($i ~ /^registers/) registers = $(i - 1)
        if ($i ~ /^smem/) smem = $(i - 2)
      }
    }
    END { flush_kernel() }' "$log" > "$folder/table"
  while IFS=$'\t' read -r name registers smem stack spills; do
    short=$(c++filt "$name" | sed -E 's/\(anonymous namespace\):://g; s/^void //; s/\(.*//')
    printf '%-72s %9s %7s %7s %7s\n' "${short:0:72}" "$registers" "$smem" "$stack" "$spills"
    if [[ $spills -ne 0 ]]; then
      echo "FAILED: $short in $source spills $spills bytes"
      failed=1
    fi
  done < "$folder/table"
done
echo "${#sources[@]} CUDA sources compiled for sm_90a"
exit $failed
