// A run over the documents of a task: in batches of similar length, with every finished document kept in a file, so that an interrupted
// run goes on where it ended.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cyfa/eval/scorer.h"
#include "cyfa/eval/task.h"

namespace cyfa::eval {

// What happened in a task.
struct TaskResult {
  std::string name;
  std::vector<Metric> metrics = {};  // empty if the run was stopped
  int64_t documents = 0;             // scored
  int64_t available = 0;             // documents of the task, without --limit
  int64_t dropped = 0;               // left out by the task's rules
  int64_t truncated = 0;             // documents of which the model did not see all
  int64_t tokens = 0;                // scored or generated
  int64_t resumed = 0;               // documents that an earlier run had finished
  double seconds = 0;                // of this run
  double cpu_seconds = 0;            // of all threads in it: on a shared machine it says more than the clock
};

struct EvaluationOptions {
  int64_t limit = 0;                  // the first documents only; 0: all
  std::filesystem::path folder = {};  // of the results of documents; empty: they are not kept
  Json identity = {};                 // of the run: what must be the same for finished documents to count
};

struct EvaluationProgress {
  int64_t done = 0, all = 0;  // documents
  double seconds = 0;
  double seconds_left = -1;  // estimated from the tokens of the batches so far; negative: not known yet
};

// Runs a task. Stops early, with documents kept and no metrics, if should_stop returns true between two batches or two generated tokens.
// Throws io::FileError for a folder that holds results of another run, naming the difference.
TaskResult evaluate(const std::string& name, const Task& task, Scorer& scorer, const EvaluationOptions& options,
                    const std::function<void(const EvaluationProgress&)>& on_progress = {});

}  // namespace cyfa::eval
