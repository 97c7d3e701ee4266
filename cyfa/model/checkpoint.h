// Checkpoints: a Hugging Face folder with config.json and model.safetensors, or shards with model.safetensors.index.json.
// Nothing in a folder is trusted: every name, size, type and offset is checked before a tensor is used or memory for it is taken.
#pragma once

#include <filesystem>
#include <functional>

#include "cyfa/model/causal_lm.h"

namespace cyfa {

struct LoadOptions {
  std::optional<at::ScalarType> dtype;  // absent: as stored (F16 becomes fp32)
  at::Device device = at::kCPU;
  bool writable = false;  // true: parameters are memory of their own. false: where type and device allow, they are the mapped file itself
};

// Throws io::FileError, which lists missing, unexpected and misshapen tensors by name.
CausalLM load_checkpoint(const std::filesystem::path& folder, const LoadOptions& options = {});

// Writes a new folder, whole or not at all: an existing one that is not empty is refused. Shards of at most shard_bytes where the model is
// larger than that; parameters in their stored type. `add` may write more files into the folder before it appears.
void save_checkpoint(const CausalLM& model, const std::filesystem::path& folder, int64_t shard_bytes = int64_t{5} << 30,
                     const std::function<void(const std::filesystem::path& folder)>& add = {});

// A number that changes with the config, any name and any bit of the parameters: what a saved state is bound to.
uint64_t fingerprint(const CausalLM& model);

}  // namespace cyfa
