// How a model is trained, as data: a TOML file, and every value of it by name on the command line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace cyfa {

struct Recipe {
  // What
  std::string model;       // config file, or a checkpoint to go on from
  std::string data;        // folder made by `cyfa prepare`
  std::string validation;  // the same, for evaluation; empty: none
  // How long
  int64_t steps = 1000;
  int64_t batch = 8;             // sequences a step, all ranks and accumulations together
  int64_t context = 2048;        // tokens a sequence
  int64_t accumulate = 1;        // parts in which a step's batch is computed
  bool reset_documents = false;  // memory begins afresh at document borders
  // Optimizer: AdamW, linear warm-up, then cosine or constant
  double rate = 3e-4;
  double final_rate = 0.1;  // share of the rate at which the cosine ends
  int64_t warmup = 1024;
  std::string schedule = "cosine";
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.01;  // on matrices, convolutions and readouts; not on gates, norms and biases
  double clip = 1.0;
  // Where
  uint64_t seed = 42;
  std::string device = "cpu";
  std::string dtype = "fp32";  // fp32, or bf16: matrices are computed with in bf16, stored and updated in fp32
  std::string engine = "auto";  // of training: auto, portable, sm90
  bool recompute = false;       // activation checkpointing
  int64_t threads = 0;
  // Watching
  int64_t log_every = 10;
  int64_t eval_every = 0;
  int64_t eval_batches = 16;
  int64_t save_every = 0;  // besides the last; 0: the last alone
  int64_t keep = 2;        // checkpoints beside the best
  int64_t health_every = 0;

  // Throws std::invalid_argument that names the key.
  void check() const;
  void set(const std::string& assignment);                // "rate=1e-3"
  static Recipe read(const std::filesystem::path& path);  // throws io::FileError
  std::string toml() const;                               // all values; reading it gives the same recipe
};

// Every key, in order, with what it means: for the reader, the help and the documents.
struct RecipeKey {
  const char* name;
  std::variant<std::string Recipe::*, int64_t Recipe::*, uint64_t Recipe::*, double Recipe::*, bool Recipe::*> member;
  const char* about;
};
const std::vector<RecipeKey>& recipe_keys();

}  // namespace cyfa
