// See task.h.
#include "cyfa/eval/task.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "cyfa/io/file_error.h"
#include "cyfa/io/nearest_name.h"

namespace cyfa::eval {
namespace {

const TaskKind* kind_named(const std::string& name) {
  const std::vector<TaskKind>& kinds = task_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const TaskKind& kind) { return kind.name == name; });
  return found == kinds.end() ? nullptr : &*found;
}

TaskName parse_name(const std::string& word) {
  TaskName result;
  std::string name = word;
  const size_t at = name.rfind('@');
  if (at != std::string::npos) {
    int64_t length = 0;
    const char *begin = name.data() + at + 1, *end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(begin, end, length);
    if (error != std::errc() || stop != end || length < 1)
      throw std::invalid_argument("task " + word + ": the length behind @ must be a number of tokens");
    result.length = length;
    name.resize(at);
  }
  const size_t colon = name.find(':');
  if (colon != std::string::npos) {
    result.argument = name.substr(colon + 1);
    name.resize(colon);
  }
  result.kind = kind_named(name);
  if (result.kind == nullptr) {
    std::vector<std::string> known;
    for (const TaskKind& kind : task_kinds()) {
      known.push_back(kind.name);
      known.insert(known.end(), kind.groups.begin(), kind.groups.end());
    }
    throw std::invalid_argument("there is no task or group " + name + io::did_you_mean(name, known) + "; `cyfa eval --tasks` lists them");
  }
  const TaskKind& kind = *result.kind;
  if (!result.argument.empty() && kind.argument.empty()) throw std::invalid_argument("task " + name + " takes nothing behind a colon");
  if (result.argument.empty() && !kind.argument.empty())
    throw std::invalid_argument("task " + name + " needs an argument: " + name + ":" + kind.argument);
  if (result.length && !kind.length)
    throw std::invalid_argument("task " + name + " has no length; leave out @" + std::to_string(*result.length));
  if (!result.length) result.length = kind.length;
  return result;
}

}  // namespace

std::string TaskName::text() const {
  std::string result = kind->name;
  if (!argument.empty()) result.append(":").append(argument);
  if (length) result.append("@").append(std::to_string(*length));
  return result;
}

std::vector<TaskName> parse_tasks(const std::vector<std::string>& words) {
  std::vector<TaskName> names;
  const auto add = [&](TaskName name) {
    const std::string text = name.text();
    if (std::none_of(names.begin(), names.end(), [&](const TaskName& other) { return other.text() == text; }))
      names.push_back(std::move(name));
  };
  for (const std::string& word : words) {
    const size_t at = word.rfind('@');
    const std::string group = word.substr(0, at);
    bool is_group = false;
    for (const TaskKind& kind : task_kinds()) {
      if (std::find(kind.groups.begin(), kind.groups.end(), group) == kind.groups.end()) continue;
      is_group = true;
      add(parse_name(kind.name + (at == std::string::npos || !kind.length ? "" : word.substr(at))));
    }
    if (!is_group) add(parse_name(word));
  }
  return names;
}

void require_files(const std::vector<TaskName>& names, const DataFiles& files) {
  std::vector<const TaskFile*> missing;
  for (const TaskName& name : names) {
    // The first file is the one without which there is no task; others may hold what rows can have themselves.
    if (name.kind->files.empty() || files.has(name.kind->files.front())) continue;
    const TaskFile* file = &name.kind->files.front();
    if (std::none_of(missing.begin(), missing.end(), [&](const TaskFile* f) { return f->names == file->names; })) missing.push_back(file);
  }
  if (missing.empty()) return;
  if (missing.size() == 1) files.find(*missing.front());
  std::string words = "lacks " + std::to_string(missing.size()) + " files; .zst is read too:";
  if (files.folder().empty()) {
    words = std::to_string(missing.size()) + " files are needed, and no data folder is named (--data DIR, or the variable CYFA_EVAL_DATA):";
  }
  for (const TaskFile* file : missing) words += "\n  " + file->names.front() + ": " + file->home + ", saved as " + file->format;
  if (files.folder().empty()) throw std::invalid_argument(words);
  throw io::FileError(files.folder(), words);
}

std::unique_ptr<Task> load_task(const TaskName& name, TaskInput input) {
  input.argument = name.argument;
  input.length = name.length;
  return name.kind->load(input, *name.kind);
}

}  // namespace cyfa::eval
