// Loading and saving checkpoints: Hugging Face folders with config.json and model.safetensors, or shards with model.safetensors.index.json.
// Folders are untrusted input: every name, size, type and offset is validated before a tensor is used or memory is allocated for it.
#pragma once

#include <filesystem>
#include <functional>

#include "cyfa/model/causal_lm.h"
#include "cyfa/model/tensor_file.h"

namespace cyfa {

// Options of load_checkpoint().
struct LoadOptions {
  std::optional<at::ScalarType> dtype;  // default: the stored type (F16 becomes fp32)
  at::Device device = at::kCPU;
  bool writable = false;  // true: parameters own their memory. false: they alias the memory-mapped file if type and device allow
};

// Loads a model. Throws io::FileError, which lists missing, unexpected and wrongly shaped tensors by name.
CausalLM load_checkpoint(const std::filesystem::path& folder, const LoadOptions& options = {});

inline constexpr int64_t kShardBytes = int64_t{5} << 30;  // largest file of weights

// Writes a new folder atomically; throws if it exists and is not empty. Parameters are written in their stored type, in shards of at most
// shard_bytes if the model is larger than that. `add` may write more files into the folder before it becomes visible.
void save_checkpoint(const CausalLM& model, const std::filesystem::path& folder, int64_t shard_bytes = kShardBytes,
                     const std::function<void(const std::filesystem::path& folder)>& add = {});

// The parts of save_checkpoint(), for a checkpoint that several processes write: the files of a model's weights in order, what writes one
// of them, and the text of their index (empty for a single file, which has none).
struct WeightFile {
  std::string name;
  NamedTensors tensors;
};
std::vector<WeightFile> weight_files(const CausalLM& model, int64_t shard_bytes);
void write_weights(const std::filesystem::path& folder, const WeightFile& file);
std::string weight_index(const std::vector<WeightFile>& files);
inline constexpr const char* kWeightIndex = "model.safetensors.index.json";  // its file

// A hash of the config and of the parameters' names and bits. Snapshots store it to identify their model.
uint64_t fingerprint(const CausalLM& model);

}  // namespace cyfa
