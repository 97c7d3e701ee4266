// The folder of a training run: recipe.toml, manifest.json, metrics.jsonl, loss.png and loss.svg, and checkpoints/step-00000100 and so on.
// Checkpoints are written atomically.
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>

#include "cyfa/train/optimizer.h"

namespace cyfa {

// A checkpoint of a run.
struct RunCheckpoint {
  std::filesystem::path path;
  int64_t step = 0;  // completed steps
  std::optional<double> eval_loss;
};

// The checkpoints of the run in folder `run`, sorted by step; none if it has none or is no run.
std::vector<RunCheckpoint> run_checkpoints(const std::filesystem::path& run);

// Reads and writes the files of one run.
class RunFolder {
 public:
  // Creates the folder, or opens it to resume. Throws io::FileError if `resume` is false and the folder holds a run, or if it is true and
  // there is none.
  RunFolder(const std::filesystem::path& path, bool resume);

  const std::filesystem::path& path() const { return path_; }

  void write_recipe(const Recipe& recipe) const;
  void write_manifest(const Json& manifest) const;
  // Appends a line to metrics.jsonl and flushes it.
  void add_metrics(const Json& row);
  // Removes the metrics of later steps, when a run resumes from the checkpoint of `step`.
  void drop_metrics_after(int64_t step);
  std::vector<Json> metrics() const;
  void draw_losses() const;  // writes loss.png and loss.svg

  // Saves a checkpoint with the model, the optimizer state and the step. Then deletes old checkpoints, except the newest `keep` and the
  // best.
  void save(const CausalLM& model, const Optimizer& optimizer, int64_t step, std::optional<double> eval_loss, int64_t keep);
  std::vector<RunCheckpoint> checkpoints() const { return run_checkpoints(path_); }

 private:
  std::filesystem::path path_;
};

// The rows of a metrics.jsonl, without a line that a crash has truncated; none if the file does not exist.
std::vector<Json> read_metrics(const std::filesystem::path& path);

// File of a run's folder that holds its recipe: a folder with it is a run.
inline constexpr const char* kRecipeFile = "recipe.toml";
// Files in a checkpoint's folder that hold the optimizer state and the completed steps.
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStepFile = "step.json";

}  // namespace cyfa
