#include "cyfa/train/run_folder.h"

#include <algorithm>
#include <cmath>

#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/json.h"
#include "cyfa/io/read_file.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/train/loss_figure.h"

namespace cyfa {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::string step_name(int64_t step) {
  std::string digits = std::to_string(step);
  return "step-" + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

}  // namespace

RunFolder::RunFolder(const fs::path& path, bool resume) : path_(path) {
  const bool there = fs::exists(path / kRecipeFile);
  if (resume && !there) throw io::FileError(path, "holds no run to go on with (no recipe.toml)");
  if (!resume && there) throw io::FileError(path, "holds a run; go on with --resume, or name another folder");
  std::error_code error;
  fs::create_directories(path / "checkpoints", error);
  if (error) throw io::FileError(path, "cannot be created: " + error.message());
}

void RunFolder::write_recipe(const Recipe& recipe) const { write_text(path_ / kRecipeFile, recipe.toml()); }
void RunFolder::write_manifest(const Json& manifest) const { write_text(path_ / "manifest.json", manifest.dump(2) + "\n"); }

void RunFolder::add_metrics(const Json& row) {
  std::ofstream file(path_ / "metrics.jsonl", std::ios::app);
  file << row.dump() << '\n' << std::flush;
  if (!file) throw io::FileError(path_ / "metrics.jsonl", "cannot be written: is the disk full?");
}

std::vector<Json> RunFolder::metrics() const { return read_metrics(path_ / "metrics.jsonl"); }

std::vector<Json> read_metrics(const fs::path& path) {
  std::vector<Json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    Json row = io::json_or_null(line);
    if (row.is_object() && row.contains("step")) rows.push_back(std::move(row));  // skips a line truncated by a crash
  }
  return rows;
}

void RunFolder::drop_metrics_after(int64_t step) {
  std::string kept;
  for (const Json& row : metrics()) {
    if (row["step"].get<int64_t>() <= step) kept += row.dump() + "\n";
  }
  write_text(path_ / "metrics.jsonl", kept);
}

void RunFolder::draw_losses() const {
  const draw::Figure figure = loss_figure("Loss of " + path_.string(), {RunLosses::of("", metrics())});
  for (const char* name : {"loss.png", "loss.svg"}) draw::write_figure(path_ / name, figure);
}

std::vector<RunCheckpoint> run_checkpoints(const fs::path& run) {
  std::vector<RunCheckpoint> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", error)) {
    if (!fs::exists(entry.path() / kStepFile, error)) continue;
    const Json json = io::json_or_null(io::read_file(entry.path() / kStepFile, 1 << 16, "the step of a checkpoint"));
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    RunCheckpoint one{entry.path(), json["step"].get<int64_t>(), std::nullopt};
    if (json.contains("eval_loss") && json["eval_loss"].is_number()) one.eval_loss = json["eval_loss"].get<double>();
    found.push_back(one);
  }
  std::sort(found.begin(), found.end(), [](const RunCheckpoint& a, const RunCheckpoint& b) { return a.step < b.step; });
  return found;
}

void RunFolder::save(const CausalLM& model, const Optimizer& optimizer, int64_t step, std::optional<double> eval_loss, int64_t keep) {
  const fs::path target = path_ / "checkpoints" / step_name(step);
  if (fs::exists(target / kStepFile)) return;
  save_checkpoint(model, target, int64_t{5} << 30, [&](const fs::path& folder) {
    write_tensor_file(folder / kOptimizerFile, optimizer.state());
    write_text(folder / kStepFile, Json{{"step", step}, {"eval_loss", eval_loss ? Json(*eval_loss) : Json(nullptr)}}.dump() + "\n");
  });
  const std::vector<RunCheckpoint> all = checkpoints();
  const RunCheckpoint* best = nullptr;
  for (const RunCheckpoint& c : all) {
    if (c.eval_loss && (best == nullptr || *c.eval_loss < *best->eval_loss)) best = &c;
  }
  for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) {
    std::error_code error;
    if (&all[i] != best) fs::remove_all(all[i].path, error);
  }
}

}  // namespace cyfa
