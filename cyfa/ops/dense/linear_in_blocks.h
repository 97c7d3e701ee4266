// A scope in which linear() gives every row the same bits whatever rows are beside it. Used by evaluations (cyfa/eval/scorer.cc).
#pragma once

#include <cstdint>

namespace cyfa::ops {

// While one exists, linear() of this thread multiplies fp32 rows on a CPU in blocks of kRowBlock, the last filled up with zeros, each block
// on one thread: a row of the result depends neither on the rows beside it nor on the number of threads. The blocks are oneDNN's, where
// torch has it; else this changes nothing. For what runs without autograd and has many rows, such as texts that are scored.
//
// On an AMD EPYC (Zen 5) oneDNN uses AVX-512 and MKL does not: 64 rows by [1024, 1024] run at 207 GFLOP/s on a core, against 81.
class LinearInBlocks {
 public:
  LinearInBlocks();
  ~LinearInBlocks();
  LinearInBlocks(const LinearInBlocks&) = delete;
  LinearInBlocks& operator=(const LinearInBlocks&) = delete;
};

inline constexpr int64_t kRowBlock = 64;

}  // namespace cyfa::ops
