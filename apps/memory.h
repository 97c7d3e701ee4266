// Words for a process that runs out of memory: how much was wanted, how much there is, what to do.
#pragma once

#include <cstddef>
#include <new>
#include <string>

namespace cyfa::app {

// Thrown by the program's operator new (apps/new.cc); says what std::bad_alloc does not.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(size_t wanted) : wanted_(wanted) {}
  size_t wanted() const { return wanted_; }

 private:
  size_t wanted_;
};

// The message for a failed allocation of `wanted` bytes; 0 if that is not known.
std::string out_of_memory(double wanted);
std::string out_of_memory(const std::bad_alloc& error);

// `message` of a c10::Error in these words, if it reports a failed allocation on the CPU or a GPU; otherwise itself.
std::string memory_words(const std::string& message);

}  // namespace cyfa::app
