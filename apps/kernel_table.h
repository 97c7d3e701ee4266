// Where GPU time goes, kernel by kernel.
#pragma once

namespace cyfa::app {

// Prints the kernels that ran between construction and print(), sorted by time. `span` says what ran: "one step".
class KernelTable {
 public:
  KernelTable();
  void print(const char* span) const;
};

}  // namespace cyfa::app
