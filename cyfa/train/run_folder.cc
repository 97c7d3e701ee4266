#include "cyfa/train/run_folder.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/json.h"
#include "cyfa/io/new_folder.h"
#include "cyfa/io/read_file.h"
#include "cyfa/train/checkpoint_files.h"
#include "cyfa/train/loss_figure.h"
#include "cyfa/train/model_card.h"

namespace cyfa {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kCheckpoints = "checkpoints";

void write_bytes(const fs::path& path, std::span<const std::byte> bytes) {
  io::AtomicFile file(path);
  file.write(bytes);
  file.commit();
}
void write_text(const fs::path& path, const std::string& text) { write_bytes(path, std::as_bytes(std::span(text))); }

template <class Number>
Json or_null(const std::optional<Number>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::optional<double> number_in(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_number() ? std::optional(json[key].get<double>()) : std::nullopt;
}

Json record_json(const StepRecord& r) {
  return {{"step", r.step},
          {"tokens", r.tokens},
          {"seconds", r.seconds},
          {"loss", or_null(r.loss)},
          {"eval_loss", or_null(r.eval_loss)},
          {"read", read_text_json(r.read)},
          {"watch", r.watch}};
}

std::string words_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return *e.what() == 0 ? "an error without words" : e.what();
  }
}

// Throws if a rank has an error: on that rank the error itself, on the others its words. On several ranks this is a collective call.
void share_error(const Group& group, const std::exception_ptr& own) {
  const std::vector<std::string> errors = group.all_gather_text(words_of(own));
  if (own) std::rethrow_exception(own);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) throw std::runtime_error("rank " + std::to_string(rank) + ": " + errors[rank]);
  }
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// loss.png and loss.svg, from the metrics so far.
void draw_losses(const fs::path& run) {
  const draw::Figure figure = loss_figure("Loss of " + run.string(), {RunLosses::of("", read_metrics(run / kMetrics))});
  for (const char* name : {"loss.png", "loss.svg"}) draw::write_figure(run / name, figure);
}

// The config as a checkpoint's own: it names its tokenizer.
Json config_with_tokenizer(Json config, const RunFacts& facts) {
  if (facts.bytes) {
    config["tokenizer"] = "bytes";
  } else if (!facts.tokenizer.empty()) {
    config.erase("tokenizer");
  }
  return config;
}

bool is_empty_or_absent(const fs::path& folder) {
  std::error_code error;
  return !fs::exists(folder, error) || fs::is_empty(folder, error);
}

}  // namespace

std::string step_name(int64_t step) {
  std::string digits = std::to_string(step);
  return "step-" + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

Json read_text_json(const std::vector<ReadText>& read) {
  Json all = Json::array();
  for (const ReadText& r : read) {
    all.push_back({{"data", r.data}, {"seed", r.seed}, {"context", r.T}, {"epoch", r.epoch}, {"windows", r.windows}});
  }
  return all;
}

std::vector<ReadText> parse_read_text(const Json& json) {
  std::vector<ReadText> read;
  if (!json.is_array()) return read;
  for (const Json& one : json) {
    const auto whole = [&](const char* key) { return one.contains(key) && one[key].is_number_unsigned(); };
    if (!one.is_object() || !whole("data") || !whole("seed") || !whole("context") || !whole("epoch") || !whole("windows")) continue;
    read.push_back({one["data"].get<uint64_t>(), one["seed"].get<uint64_t>(), one["context"].get<int64_t>(), one["epoch"].get<int64_t>(),
                    one["windows"].get<int64_t>()});
  }
  return read;
}

std::optional<StepRecord> read_step_record(const fs::path& checkpoint) {
  std::error_code error;
  if (!fs::exists(checkpoint / kStepFile, error)) return std::nullopt;
  const Json json = io::json_or_null(io::read_file(checkpoint / kStepFile, 1 << 20, "the step of a checkpoint"));
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return std::nullopt;
  StepRecord record;
  record.step = json["step"].get<int64_t>();
  record.tokens = static_cast<int64_t>(number_in(json, "tokens").value_or(0));
  record.seconds = number_in(json, "seconds").value_or(0);
  record.loss = number_in(json, "loss");
  record.eval_loss = number_in(json, "eval_loss");
  if (json.contains("read")) record.read = parse_read_text(json["read"]);
  if (json.contains("watch")) record.watch = json["watch"];
  return record;
}

RunFolder::RunFolder(const fs::path& path, bool resume, bool leads) : path_(path), leads_(leads) {
  if (!leads) return;
  const bool there = fs::exists(path / kRecipeFile);
  if (resume && !there) throw io::FileError(path, "holds no run to go on with (no recipe.toml)");
  if (!resume && there) throw io::FileError(path, "holds a run; go on with --resume, or name another folder");
  if (resume) {
    lock();
  } else if (!is_empty_or_absent(path / kCheckpoints) || fs::exists(path / kMetrics)) {
    throw io::FileError(path, "holds checkpoints or metrics of a run whose recipe.toml is gone; name another folder");
  }
}

void RunFolder::lock() {
  lock_ = std::make_unique<io::FolderLock>(path_, "another `cyfa train`");
  io::remove_temporaries(path_);
  io::remove_temporaries(path_ / kCheckpoints);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_ / kCheckpoints, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find(io::kPartMark) != std::string::npos) fs::remove_all(entry.path(), error);
  }
}

void RunFolder::start(const Recipe& recipe, const Json& manifest) {
  if (!leads_) return;
  if (!lock_) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) throw io::FileError(path_, "cannot be created: " + error.message());
    lock();
    if (fs::exists(path_ / kRecipeFile)) throw io::FileError(path_, "holds a run that has just begun; name another folder");
  }
  std::error_code error;
  fs::create_directories(path_ / kCheckpoints, error);
  if (error) throw io::FileError(path_ / kCheckpoints, "cannot be created: " + error.message());
  write_text(path_ / kManifest, manifest.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  write_text(path_ / kRecipeFile, recipe.toml());  // last: a folder with a recipe holds a run
}

Json RunFolder::manifest() const {
  if (!fs::exists(path_ / kManifest)) return Json::object();
  Json json = io::json_or_null(io::read_file(path_ / kManifest, 1 << 24, "the manifest of a run"));
  if (!json.is_object()) throw io::FileError(path_ / kManifest, "is damaged: it is not a JSON object");
  return json;
}

void RunFolder::add_metrics(const Json& row) {
  if (!leads_) return;
  std::ofstream file(path_ / kMetrics, std::ios::app);
  file << row.dump() << '\n' << std::flush;
  if (!file) throw io::FileError(path_ / kMetrics, "cannot be written: is the disk full?");
}

std::vector<Json> RunFolder::metrics() const { return read_metrics(path_ / kMetrics); }

std::vector<Json> read_metrics(const fs::path& path) {
  std::vector<Json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    Json row = io::json_or_null(line);
    // Skips a line truncated by a crash.
    if (row.is_object() && row.contains("step") && row["step"].is_number_integer()) rows.push_back(std::move(row));
  }
  return rows;
}

void RunFolder::drop_metrics_after(int64_t step) {
  if (!leads_ || !fs::exists(path_ / kMetrics)) return;
  std::string kept;
  for (const Json& row : metrics()) {
    if (row["step"].get<int64_t>() <= step) kept += row.dump() + "\n";
  }
  write_text(path_ / kMetrics, kept);
}

std::vector<RunCheckpoint> run_checkpoints(const fs::path& run) {
  std::vector<RunCheckpoint> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / kCheckpoints, error)) {
    const std::optional<StepRecord> record = read_step_record(entry.path());
    if (record && entry.path().filename() == step_name(record->step)) found.push_back({*record, entry.path()});
  }
  std::sort(found.begin(), found.end(), [](const RunCheckpoint& a, const RunCheckpoint& b) { return a.step < b.step; });
  return found;
}

struct RunFolder::Writing {
  std::unique_ptr<io::NewFolder> folder;                                         // of the first rank
  std::shared_ptr<CheckpointFiles> files = std::make_shared<CheckpointFiles>();  // the thread may outlive the run
  std::thread thread;
  int64_t step = 0, keep = 0;

  ~Writing() {
    if (thread.joinable()) thread.join();
  }
};

RunFolder::RunFolder(RunFolder&& other) noexcept = default;
RunFolder::~RunFolder() = default;

// All ranks: the first opens the folder, and says where it is; an empty path if the checkpoint is there already.
fs::path RunFolder::open_part(const fs::path& target, Writing& writing) const {
  std::exception_ptr error;
  std::string path;
  try {
    if (leads_ && !fs::exists(target / kStepFile)) {
      writing.folder = std::make_unique<io::NewFolder>(target);
      path = writing.folder->path().string();
    }
  } catch (...) {
    error = std::current_exception();
  }
  share_error(group_, error);
  return group_.all_gather_text(path).at(0);
}

void RunFolder::begin_save(const CausalLM& model, const Optimizer& optimizer, StepRecord record, const Recipe& recipe) {
  finish_save();
  if (!leads_ && group_.alone()) return;
  auto writing = std::make_unique<Writing>();
  CheckpointFiles& files = *writing->files;
  files.folder = open_part(path_ / kCheckpoints / step_name(record.step), *writing);
  if (files.folder.empty()) return;
  writing->step = record.step;
  writing->keep = recipe.keep;
  const std::vector<WeightFile> weights = weight_files(model, weight_file_bytes(model, group_.size(), smallest_weight_file));
  for (size_t i = static_cast<size_t>(group_.rank()); i < weights.size(); i += static_cast<size_t>(group_.size())) {
    files.weights.push_back(weights[i]);
  }
  files.optimizer = optimizer.state(group_.rank(), group_.size());
  if (leads_) {
    if (facts_.read) record.read = facts_.read(record.step);
    if (const std::string index = weight_index(weights); !index.empty()) files.others.emplace_back(kWeightIndex, bytes_of(index));
    files.others.emplace_back("config.json", bytes_of(config_with_tokenizer(model.config().json, facts_).dump(2) + "\n"));
    if (!facts_.tokenizer.empty()) files.others.emplace_back("tokenizer.model", facts_.tokenizer);
    files.others.emplace_back("README.md", bytes_of(model_card(model, facts_, recipe, record)));
    files.others.emplace_back(kStepFile, bytes_of(record_json(record).dump() + "\n"));
    files.draw = [path = path_] { draw_losses(path); };
  }
  if (recipe.save_in_background) {
    files.copy_to_host();
    writing->thread = std::thread([shared = writing->files] { shared->write(); });
  } else {
    files.write();
  }
  writing_ = std::move(writing);
}

bool RunFolder::written() const { return writing_ == nullptr || writing_->files->written(); }

std::optional<RunFolder::Saved> RunFolder::finish_save(std::optional<int64_t> good_before) {
  if (writing_ == nullptr) return std::nullopt;
  const std::unique_ptr<Writing> done = std::move(writing_);
  if (done->thread.joinable()) done->thread.join();
  share_error(group_, done->files->error());
  if (leads_) {
    done->folder->commit();
    prune(done->keep, good_before);
  }
  return Saved{done->step, done->files->not_drawn()};
}

void RunFolder::abandon_save() {
  if (writing_ == nullptr) return;
  if (writing_->thread.joinable()) writing_->thread.detach();
  if (writing_->folder) writing_->folder->abandon();  // the thread may still write there; the next session removes it
  writing_.reset();
}

void RunFolder::save(const CausalLM& model, const Optimizer& optimizer, StepRecord record, const Recipe& recipe,
                     std::optional<int64_t> good_before) {
  begin_save(model, optimizer, std::move(record), recipe);
  finish_save(good_before);
}

void RunFolder::prune(int64_t keep, std::optional<int64_t> good_before) const {
  const std::vector<RunCheckpoint> all = checkpoints();
  const RunCheckpoint *best = nullptr, *good = nullptr;
  for (const RunCheckpoint& c : all) {
    if (c.eval_loss && (best == nullptr || *c.eval_loss < *best->eval_loss)) best = &c;
    if (good_before && c.step < *good_before) good = &c;
  }
  for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) {
    std::error_code error;
    if (&all[i] != best && &all[i] != good) fs::remove_all(all[i].path, error);
  }
}

fs::path RunFolder::set_aside_after(int64_t step) const {
  if (!leads_) return {};
  std::vector<RunCheckpoint> later;
  for (RunCheckpoint& c : checkpoints()) {
    if (c.step > step) later.push_back(std::move(c));
  }
  if (later.empty()) return {};
  int64_t number = 1;
  while (fs::exists(path_ / ("aside-" + std::to_string(number)))) ++number;
  const fs::path aside = path_ / ("aside-" + std::to_string(number));
  std::error_code error;
  fs::create_directory(aside, error);
  if (!error && fs::exists(path_ / kMetrics)) fs::copy_file(path_ / kMetrics, aside / kMetrics, error);
  for (size_t i = 0; i < later.size() && !error; ++i) fs::rename(later[i].path, aside / later[i].path.filename(), error);
  if (error) throw io::FileError(aside, "later checkpoints cannot be moved here: " + error.message());
  return aside;
}

}  // namespace cyfa
