// CYFA_CLONES in front of a function definition compiles it once per x86-64 level and selects a version when the program is loaded (GCC
// function multiversioning). Used by rowwise/rowwise.cc, cyclic_flow/cpu/chunk_rows.cc and delta_rule/inverse.cc. A callee is compiled for
// the same level only if it is inlined. Empty for other compilers and architectures, and under AddressSanitizer.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define CYFA_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CYFA_CLONES
#endif
