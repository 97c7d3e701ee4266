#include "cyfa/experiment/results.h"

#include <algorithm>

#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/io/json.h"

namespace cyfa::experiment {
namespace {

namespace fs = std::filesystem;

constexpr io::JsonLimits kLimits = {.what = "the runs of an experiment", .bytes = 64 << 20, .values = 1 << 22};

bool is_run(const Json& json) {
  return json.is_object() && json.contains("variant") && json["variant"].is_string() && json.contains("key") && json["key"].is_object() &&
         json.contains("result") && json["result"].is_object();
}

std::string hash_of(const Json& key) {
  char out[20];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(io::hash64(key.dump())));
  return out;
}

}  // namespace

std::string Run::hash() const { return hash_of(key); }

std::string Run::label() const {
  if (rate == 0 && key.contains("T"))
    return variant + (key["kind"] == kDecodingSpeed ? ", a step after " : ", ") + key["T"].dump() + " tokens";
  if (rate == 0) return variant;
  return variant + ", rate " + Json(rate).dump() + ", seed " + std::to_string(seed) + (key.contains("run") ? ", needles" : "");
}

std::string Run::folder() const { return variant + "-" + (key.contains("run") ? hash_of(key["run"]) : hash()); }

Results::Results(const fs::path& folder) : folder_(folder) {
  const fs::path file = folder / kRunsFile;
  if (!fs::exists(file)) return;
  const Json json = io::read_json(file, kLimits);
  if (!json.is_object() || !json.contains("runs") || !json["runs"].is_array() || !json.contains("settings") ||
      !json["settings"].is_object() || !std::all_of(json["runs"].begin(), json["runs"].end(), is_run)) {
    throw io::FileError(file,
                        "is damaged: wanted settings and a list of runs with variant, key and result; name another folder with --out");
  }
  settings = json["settings"];
  for (const Json& run : json["runs"]) runs_.push_back(run);
  for (size_t i = 0; i < runs_.size(); ++i) index_[hash_of(runs_[i]["key"])] = i;
}

void Results::share_with_neighbours() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::absolute(folder_).lexically_normal().parent_path(), error)) {
    if (!fs::exists(entry.path() / kRunsFile) || fs::equivalent(entry.path(), folder_, error)) continue;
    const Results neighbour(entry.path());
    for (const auto& [hash, at] : neighbour.index_) {
      Json result = neighbour.runs_[at]["result"];
      if (!result.contains("from")) result["from"] = entry.path().filename().string();
      others_.emplace(hash, std::move(result));
    }
  }
}

const Json* Results::find(const Run& run) {
  const std::string hash = run.hash();
  if (const auto found = index_.find(hash); found != index_.end()) return &runs_[found->second]["result"];
  const auto other = others_.find(hash);
  if (other == others_.end()) return nullptr;
  put(run, other->second);
  return &runs_.back()["result"];
}

void Results::put(const Run& run, const Json& result) {
  index_[run.hash()] = runs_.size();
  runs_.push_back({{"variant", run.variant}, {"rate", run.rate}, {"seed", run.seed}, {"key", run.key}, {"result", result}});
}

void Results::add(const Run& run, const Json& result) {
  put(run, result);
  write();
}

void Results::write() const {
  fs::create_directories(folder_);
  std::string text = "{\"settings\": " + settings.dump() + ",\n\"runs\": [";
  for (size_t i = 0; i < runs_.size(); ++i) text += (i == 0 ? "\n" : ",\n") + runs_[i].dump();
  text += "\n]}\n";
  io::AtomicFile file(folder_ / kRunsFile);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace cyfa::experiment
