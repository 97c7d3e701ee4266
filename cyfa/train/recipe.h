// Training recipes: TOML files whose values can be overridden by name on the command line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace cyfa {

// All settings of a training run.
struct Recipe {
  // Model and data
  std::string model;       // config file, or checkpoint to continue from
  std::string data;        // folder written by `cyfa prepare`
  std::string validation;  // the same, for evaluation; empty for no evaluation
  // Length and batch
  int64_t steps = 1000;
  int64_t batch = 8;                // sequences per optimizer step, including all accumulated micro-batches
  int64_t context = 2048;           // tokens per sequence
  int64_t accumulate = 1;           // gradient accumulation: micro-batches per optimizer step
  bool reset_documents = false;     // reset the state at document boundaries
  bool skip_read = true;            // leave out text that the training of the checkpoint `model` has read
  std::string check_data = "auto";  // compare the data with its checksums at the start: auto, whole, none
  // Optimizer: AdamW, linear warm-up, then cosine or constant
  double rate = 3e-4;
  double final_rate = 0.1;  // final learning rate of the cosine, as a fraction of rate
  int64_t warmup = 1024;
  std::string schedule = "cosine";
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.01;  // on matrices, convolutions and readouts; not on gates, norms and biases
  double clip = 1.0;
  // Execution
  uint64_t seed = 42;
  std::string device = "cpu";
  std::string dtype = "fp32";   // fp32, or bf16 for mixed precision: matrix products in bf16, parameters and updates in fp32
  std::string engine = "auto";  // training engine: auto, portable, sm90
  bool recompute = false;       // activation checkpointing
  bool recompute_rows = false;  // compute norms, gates, SwiGLUs and convolutions again in backward
  bool recompute_mlp = false;   // compute the MLP's gate and up projections again in backward
  int64_t threads = 0;          // 0 for one per core
  // Several ranks
  std::string shard = "none";   // none, or optimizer: each rank keeps moments and fp32 masters of a part
  std::string reduce = "fp32";  // type in which gradients are summed over the ranks: fp32 or bf16
  int64_t context_ranks = 1;    // ranks over which each batch's sequences are cut (context parallel)
  double bucket_mb = 25;        // gradients are summed over the ranks in pieces of about this size
  double timeout_minutes = 10;  // a rank that the others wait for longer than this has failed
  // Logging, evaluation, checkpoints
  int64_t log_every = 10;
  int64_t eval_every = 0;  // 0 for only at the end
  int64_t eval_batches = 16;
  int64_t save_every = 0;          // 0 for no fixed number of steps
  double save_minutes = 10;        // 0 for no fixed time
  bool save_in_background = true;  // write checkpoints while training goes on
  int64_t keep = 2;                // newest checkpoints to keep, in addition to the best
  int64_t health_every = 0;        // 0 for with every evaluation

  // Checks all values. check() and set() throw std::invalid_argument, which names the key.
  void check() const;
  void set(const std::string& assignment);                // "rate=1e-3"
  static Recipe read(const std::filesystem::path& path);  // throws io::FileError
  std::string toml() const;                               // all values, as a file that read() accepts
};

// All keys in order, with a description: for parsing, help texts and documentation.
struct RecipeKey {
  const char* name;
  std::variant<std::string Recipe::*, int64_t Recipe::*, uint64_t Recipe::*, double Recipe::*, bool Recipe::*> member;
  const char* about;
  const char* fixed = nullptr;  // why the value cannot change once the run has begun; null if it can
};
const std::vector<RecipeKey>& recipe_keys();
std::string recipe_value(const Recipe& recipe, const RecipeKey& key);  // as in Recipe::toml()

// The keys whose values differ, in order.
std::vector<const RecipeKey*> recipe_changes(const Recipe& before, const Recipe& after);

}  // namespace cyfa
