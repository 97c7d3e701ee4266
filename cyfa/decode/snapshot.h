// A sequence's memory in a file, to go on from later: versioned, checksummed, and bound to the model that made it.
#pragma once

#include <filesystem>

#include "cyfa/model/causal_lm.h"

namespace cyfa {

// A sequence after some tokens: nothing of them needs to be computed again.
struct Snapshot {
  std::vector<int64_t> ids;  // what the state has taken in
  ModelState state;          // of one sequence
  at::Tensor logits;         // [vocab_size] fp32, for the token after the last; undefined where ids is empty
};

// Whole or not at all; throws io::FileError.
void save_snapshot(const std::filesystem::path& path, const Snapshot& snapshot, const CausalLM& model);

// Throws io::FileError for a file that is no snapshot, is damaged, has another version, or belongs to another model.
Snapshot load_snapshot(const std::filesystem::path& path, const CausalLM& model);

}  // namespace cyfa
