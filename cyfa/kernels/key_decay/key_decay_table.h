// Function table of key_decay.h for each instruction set, chosen in key_decay.cc. Tables of sets for which isa_available() is false must
// not be used.
#pragma once

#include "cyfa/kernels/key_decay/key_decay.h"

namespace cyfa::key_decay::impl {

struct Table {
  decltype(&key_decay::from_start) from_start, to_end;
  decltype(&key_decay::from_start_backward) from_start_backward, to_end_backward;
  decltype(&key_decay::block_scores) block_scores;
  decltype(&key_decay::block_apply) block_apply;
  decltype(&key_decay::block_backward) block_backward;
};

const Table& table_baseline();
const Table& table_avx2();
const Table& table_avx512();

}  // namespace cyfa::key_decay::impl
