// Bounds how long a waiting OpenMP thread spins, for the whole program. Linked into the executable only: Python and other programs that
// load libcyfa_ops.so keep their own settings.
//
// libgomp lets a thread that waits spin for 300,000 turns (milliseconds) before it sleeps. On a busy machine that takes the CPU from the
// thread that is waited for: two threads then do a fiftieth of the work of one. Sleeping at once costs a wake-up per parallel loop, which
// halves the speed of small models on an idle machine. kSpin is between: docs/notes/2026-11-18-threads.md has the measurements.
//
// libgomp reads the environment in its constructor, long before main. The one function of the executable that runs earlier is in
// .preinit_array; there the program starts itself again, once, with the variable set. This happens before any library is initialised and
// costs a few milliseconds.
#include <unistd.h>

#include <cstring>

namespace {

constexpr char kSpin[] = "GOMP_SPINCOUNT=10000";

bool sets(const char* entry, const char* name) {
  const size_t length = std::strlen(name);
  return std::strncmp(entry, name, length) == 0 && entry[length] == '=';
}

// Runs before the C++ runtime is set up: no allocation, no statics with constructors, no environ.
void bound_spinning(int, char** argv, char** environment) {
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (sets(environment[count], "GOMP_SPINCOUNT") || sets(environment[count], "OMP_WAIT_POLICY")) return;  // the user's choice, or ours
  }
  constexpr size_t kMost = 1 << 14;  // of a larger environment nothing is changed
  static char* with[kMost + 2];
  if (count > kMost) return;
  std::memcpy(with, environment, count * sizeof(char*));
  with[count] = const_cast<char*>(kSpin);
  with[count + 1] = nullptr;
  execve("/proc/self/exe", argv, with);  // returns only if it fails; then libgomp's default stays
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const first)(int, char**, char**) = bound_spinning;

}  // namespace
