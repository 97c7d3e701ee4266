// CYFA_CLONES before a function: one copy of it per instruction set, chosen when the program starts. What it calls is copied with it only
// where it is inlined.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define CYFA_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CYFA_CLONES
#endif
