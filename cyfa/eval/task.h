// Evaluation tasks: documents, the requests that they make to a model, their scores, and the metrics over all documents.
//
// A task is one line in registry.cc and a class: load() reads or generates its documents; requests() and score() handle one document, so
// that finished documents can be kept and an interrupted run goes on with the others; metrics() sums them up.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cyfa/eval/data_files.h"
#include "cyfa/eval/encoder.h"
#include "cyfa/eval/metrics.h"
#include "cyfa/eval/request.h"

namespace cyfa::eval {

// The documents of one task.
class Task {
 public:
  virtual ~Task() = default;

  virtual int64_t size() const = 0;  // documents
  // What document i asks; the same at every call. Not empty. Requests of one document share the computation of their common beginning.
  virtual std::vector<Request> requests(int64_t i) const = 0;
  // The numbers that document i contributes, in the order of columns().
  virtual std::vector<double> score(int64_t i, std::span<const Response> responses) const = 0;
  virtual std::vector<std::string> columns() const = 0;
  // The metrics over the scored documents; the first is the task's headline.
  virtual std::vector<Metric> metrics(const Scores& scores) const = 0;
  // Documents of the source that the task leaves out by its rules.
  virtual int64_t dropped() const { return 0; }
  // What of a text that is too long the model does not see: "left" (its first tokens), "middle", or "none" if it sees all of it.
  virtual std::string truncation() const { return "left"; }
  // Document i as a line of JSON that another run can read, for tasks that generate documents; empty for others.
  virtual std::string sample_line(int64_t /*i*/) const { return {}; }
};

// What a task is loaded from. Everything that its documents depend on is here.
struct TaskInput {
  DataFiles& files;
  const Encoder& encoder;              // the model's tokenizer
  int64_t max_length = 0;              // tokens that the model is given at most
  std::string argument = {};           // of "NAME:ARGUMENT"; empty if there is none
  std::optional<int64_t> length = {};  // of "NAME@LENGTH": the length in tokens of what a task generates
  int64_t limit = 0;                   // generators make this many documents; 0: as many as the task's definition says
  uint64_t seed = 42;                  // of generators
  // Text in which generators hide needles: a file, or a folder of files. Empty: the one that comes with the program.
  std::filesystem::path haystack = {};
};

// An entry of the registry.
struct TaskKind {
  std::string name;
  std::string about;                // one line for `cyfa eval --tasks`
  std::vector<std::string> groups;  // names that stand for several tasks: "paper", "mc", "recall", ...
  std::unique_ptr<Task> (*load)(const TaskInput& input, const TaskKind& kind);
  std::vector<TaskFile> files = {};    // that load() reads
  std::string argument = {};           // what stands behind NAME: in help ("FILE"); empty: nothing
  std::optional<int64_t> length = {};  // default of NAME@LENGTH; absent: the task has no length
};

// All tasks, in the order in which help lists them.
const std::vector<TaskKind>& task_kinds();

// A task as the user names it: NAME[:ARGUMENT][@LENGTH].
struct TaskName {
  const TaskKind* kind = nullptr;
  std::string argument;
  std::optional<int64_t> length;

  std::string text() const;
};
// The tasks that the words mean, with groups in place of their names and without repetitions. Throws std::invalid_argument.
std::vector<TaskName> parse_tasks(const std::vector<std::string>& words);

// Throws io::FileError if files of the tasks are missing; of several it names each, with where it comes from.
void require_files(const std::vector<TaskName>& names, const DataFiles& files);

// Loads a task. Throws io::FileError for files that are missing (with where they come from) or damaged.
std::unique_ptr<Task> load_task(const TaskName& name, TaskInput input);

}  // namespace cyfa::eval
