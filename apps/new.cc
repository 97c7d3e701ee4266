// The program's operator new: as the standard library's, but its exception knows how many bytes were wanted. Linked into the executable
// only; a build with sanitizers keeps theirs.
#include <cstdlib>

#include "apps/memory.h"

void* operator new(size_t size) {
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw cyfa::app::OutOfMemory(size);
}
