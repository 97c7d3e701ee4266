// Snapshots: the state of a sequence, saved to a file to continue from later. Files are versioned, checksummed and tied to their model.
#pragma once

#include <filesystem>

#include "cyfa/model/causal_lm.h"

namespace cyfa {

// A sequence after some tokens, with everything needed to continue it.
struct Snapshot {
  std::vector<int64_t> ids;  // the tokens processed so far
  ModelState state;          // one sequence
  at::Tensor logits;         // [vocab_size] fp32, for the next token; undefined if ids is empty
};

// Writes the file atomically; throws io::FileError.
void save_snapshot(const std::filesystem::path& path, const Snapshot& snapshot, const CausalLM& model);

// Throws io::FileError for a file that is not a snapshot, is corrupt, has another version, or belongs to another model.
Snapshot load_snapshot(const std::filesystem::path& path, const CausalLM& model);

}  // namespace cyfa
