// The folder of a training run: recipe.toml, manifest.json, metrics.jsonl, loss.png and loss.svg, and checkpoints/step-00000100 and so on.
// Checkpoints are written atomically, and beside training. One process at a time holds the folder; of a run's ranks it is the first. Into a
// checkpoint every rank writes its part of the weights and of the optimizer's state. All ranks must see the same folder.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "cyfa/data/batches.h"
#include "cyfa/io/folder_lock.h"
#include "cyfa/parallel/group.h"
#include "cyfa/train/optimizer.h"

namespace cyfa {

// What a checkpoint records about the training up to it: step.json.
struct StepRecord {
  int64_t step = 0;    // completed steps
  int64_t tokens = 0;  // read in these steps
  double seconds = 0;  // of training, over all sessions of the run
  std::optional<double> loss, eval_loss;
  std::vector<ReadText> read;  // of the data, by this run and by earlier training
  Json watch;                  // TrainingWatch
};

// A checkpoint of a run.
struct RunCheckpoint : StepRecord {
  std::filesystem::path path;
};

// What every checkpoint of a run contains beside the training state, so that it can be used by itself.
struct RunFacts {
  std::string data;                                          // name of the data folder
  std::string data_hash;                                     // hexadecimal
  int64_t data_tokens = 0;                                   // in the data folder
  bool bytes = false;                                        // the tokens are bytes
  std::vector<std::byte> tokenizer;                          // contents of tokenizer.model; empty for none
  std::function<std::vector<ReadText>(int64_t steps)> read;  // StepRecord::read after so many steps; may be empty
};

// The checkpoints of the run in folder `run`, sorted by step; none if it has none or is no run.
std::vector<RunCheckpoint> run_checkpoints(const std::filesystem::path& run);

// Reads and writes the files of one run.
class RunFolder {
 public:
  // Opens a run to resume it: locks the folder and removes what a killed process left half written. Without `resume` nothing is written
  // before start(). Throws io::FileError if `resume` is false and the folder holds a run, and if it is true and there is none. On a rank
  // that does not lead, the constructor checks nothing, and what writes does nothing.
  RunFolder(const std::filesystem::path& path, bool resume, bool leads = true);
  RunFolder(RunFolder&& other) noexcept;
  ~RunFolder();                                       // waits for what is being written; an unfinished checkpoint is removed
  void join(const Group& group) { group_ = group; }   // the ranks of the run; without this, it has one
  int64_t smallest_weight_file = int64_t{256} << 20;  // bytes; several ranks divide the weights among them, but into no smaller files

  const std::filesystem::path& path() const { return path_; }

  // Writes recipe.toml and manifest.json. A new run begins with this: it creates and locks the folder.
  void start(const Recipe& recipe, const Json& manifest);
  Json manifest() const;  // an empty object if there is none
  void describe(RunFacts facts) { facts_ = std::move(facts); }

  // Appends a line to metrics.jsonl and flushes it.
  void add_metrics(const Json& row);
  // Removes the metrics of later steps, when a run resumes from the checkpoint of `step`.
  void drop_metrics_after(int64_t step);
  std::vector<Json> metrics() const;

  // Begins to save a whole checkpoint: parameters, config, tokenizer, model card, the optimizer's state and `record`, whose `read` is set
  // here. With recipe.save_in_background, copies what this rank writes to the host's memory and writes it in a thread; training may go on.
  // Otherwise it is written when this returns. loss.png and loss.svg are drawn with it. On several ranks these are collective calls.
  void begin_save(const CausalLM& model, const Optimizer& optimizer, StepRecord record, const Recipe& recipe);
  bool saving() const { return writing_ != nullptr; }  // begun and not finished; the same on all ranks
  bool written() const;                                // whether this rank has nothing left to write
  // Waits for all ranks' files, and gives the checkpoint its name: from here on it counts. Throws what went wrong on any rank. Then deletes
  // old checkpoints, except the newest recipe.keep, the best, and, if `good_before` is given, the newest before that step. Nothing if no
  // save has begun.
  struct Saved {
    int64_t step = 0;
    std::string not_drawn;  // why there is no new picture of the losses; empty if there is one
  };
  std::optional<Saved> finish_save(std::optional<int64_t> good_before = std::nullopt);
  // Leaves an unfinished checkpoint to itself, when other ranks have failed and this process is about to end.
  void abandon_save();
  // Both, one after the other.
  void save(const CausalLM& model, const Optimizer& optimizer, StepRecord record, const Recipe& recipe,
            std::optional<int64_t> good_before = std::nullopt);
  std::vector<RunCheckpoint> checkpoints() const { return run_checkpoints(path_); }

  // Moves the checkpoints after `step` to a new folder beside them, with a copy of metrics.jsonl. Returns that folder, or an empty path if
  // there are no such checkpoints.
  std::filesystem::path set_aside_after(int64_t step) const;

 private:
  struct Writing;  // a checkpoint that is being written

  void lock();
  std::filesystem::path open_part(const std::filesystem::path& target, Writing& writing) const;
  void prune(int64_t keep, std::optional<int64_t> good_before) const;

  std::filesystem::path path_;
  bool leads_;
  Group group_;
  std::unique_ptr<io::FolderLock> lock_;
  RunFacts facts_;
  std::unique_ptr<Writing> writing_;
};

// The rows of a metrics.jsonl, without a line that a crash has truncated; none if the file does not exist.
std::vector<Json> read_metrics(const std::filesystem::path& path);

// File of a run's folder that holds its recipe: a folder with it is a run.
inline constexpr const char* kRecipeFile = "recipe.toml";
// File in a checkpoint's folder that holds the StepRecord.
inline constexpr const char* kStepFile = "step.json";

std::string step_name(int64_t step);  // "step-00000100"

// The record of any checkpoint, in a run's folder or elsewhere; absent if it has none.
std::optional<StepRecord> read_step_record(const std::filesystem::path& checkpoint);

Json read_text_json(const std::vector<ReadText>& read);
std::vector<ReadText> parse_read_text(const Json& json);  // entries that are damaged are left out

}  // namespace cyfa
