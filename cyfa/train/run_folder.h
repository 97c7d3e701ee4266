// A training run on disk: recipe.toml, manifest.json, metrics.jsonl, loss.svg, and checkpoints/step-00000100, each whole or not there.
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>

#include "cyfa/train/optimizer.h"

namespace cyfa {

struct RunCheckpoint {
  std::filesystem::path path;
  int64_t step = 0;  // steps that were done
  std::optional<double> eval_loss;
};

class RunFolder {
 public:
  // Makes the folder, or opens it to go on. Throws io::FileError: `resume` is false and there is a run, or true and there is none.
  RunFolder(const std::filesystem::path& path, bool resume);

  const std::filesystem::path& path() const { return path_; }

  void write_recipe(const Recipe& recipe) const;
  void write_manifest(const Json& manifest) const;
  // A line of metrics.jsonl, flushed. When a run goes on, lines of steps after the checkpoint's are dropped first.
  void add_metrics(const Json& row);
  void drop_metrics_after(int64_t step);
  std::vector<Json> metrics() const;
  void draw_curve() const;

  // Checkpoint of the model with the optimizer's state and the step; then old ones go, but for the newest `keep` and the best.
  void save(const CausalLM& model, const Optimizer& optimizer, int64_t step, std::optional<double> eval_loss, int64_t keep);
  std::vector<RunCheckpoint> checkpoints() const;  // by step

 private:
  std::filesystem::path path_;
};

// The state of the optimizer beside a checkpoint, and the steps done.
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStepFile = "step.json";

}  // namespace cyfa
