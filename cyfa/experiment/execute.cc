#include "cyfa/experiment/execute.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cyfa/eval/encoder.h"
#include "cyfa/experiment/needles.h"
#include "cyfa/experiment/recipe.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/train/trainer.h"

namespace cyfa::experiment {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCurvePoints = 120;     // of a training curve in runs.json
constexpr int64_t kLogitRows = 8192;      // of an evaluation, at a time
constexpr int64_t kTokensAtOnce = 32768;  // of an evaluation

// A number with six digits, so that runs.json stays small.
Json short_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return Json::parse(text);
}

// The losses and gradient norms of a run in at most kCurvePoints points: [step, mean loss, mean norm, largest norm] of as many steps.
Json curve_of(const std::vector<Json>& rows) {
  std::vector<const Json*> steps;
  for (const Json& row : rows) {
    if (row.contains("loss") && row["loss"].is_number() && row.contains("grad_norm") && row["grad_norm"].is_number()) steps.push_back(&row);
  }
  const size_t each = std::max<size_t>(1, (steps.size() + kCurvePoints - 1) / kCurvePoints);
  Json curve = Json::array();
  for (size_t first = 0; first < steps.size(); first += each) {
    const size_t end = std::min(first + each, steps.size());
    double loss = 0, norm = 0, most = 0;
    for (size_t i = first; i < end; ++i) {
      const double n = (*steps[i])["grad_norm"].get<double>();
      loss += (*steps[i])["loss"].get<double>();
      norm += n;
      most = std::max(most, n);
    }
    const auto count = static_cast<double>(end - first);
    curve.push_back({(*steps[end - 1])["step"], short_number(loss / count), short_number(norm / count), short_number(most)});
  }
  return curve;
}

// A run's model, folder and trainer, from the beginning or from its last checkpoint.
class Session {
 public:
  Session(const Json& key, const Place& place, Recipe recipe, const BatchSource& source)
      : place_(place), recipe_(std::move(recipe)), folder_(open(place.folder)), model_(ModelConfig::parse(key["config"])) {
    const auto checkpoints = folder_.checkpoints();
    const at::Device device(recipe_.device);
    if (!checkpoints.empty()) {
      model_ = load_checkpoint(checkpoints.back().path, {at::kFloat, device, true});
    } else {
      model_.initialise(recipe_.seed, at::kFloat, device);
    }
    trainer_ = std::make_unique<Trainer>(model_, recipe_, source, BatchSource(), &folder_);
    if (!checkpoints.empty()) trainer_->resume(checkpoints.back());
    folder_.drop_metrics_after(checkpoints.empty() ? 0 : checkpoints.back().step);
    folder_.start(recipe_, {{"key", key}});
    trainer_->save_at_end = place.keep;
  }

  CausalLM& model() { return model_; }
  Trainer& trainer() { return *trainer_; }
  RunFolder& folder() { return folder_; }
  const Recipe& recipe() const { return recipe_; }

  // What every result says.
  Json facts(int64_t tokens) {
    std::vector<double> speeds;
    double seconds = 0;
    const std::vector<Json> rows = folder_.metrics();
    for (const Json& row : rows) {
      if (row.contains("tokens_per_s")) speeds.push_back(row["tokens_per_s"].get<double>());
      if (row.contains("seconds")) seconds = row["seconds"].get<double>();
    }
    std::sort(speeds.begin(), speeds.end());
    return {{"parameters", model_.table().numel()},
            {"state", model_.memory_scalars()},
            {"engine", trainer_->engine().name()},
            {"steps", trainer_->step()},
            {"tokens", tokens},
            {"training_seconds", short_number(seconds)},
            {"tokens_per_s", short_number(speeds.empty() ? 0 : speeds[speeds.size() / 2])},
            {"curve", curve_of(rows)}};
  }

 private:
  static RunFolder open(const fs::path& path) {
    const bool resume = fs::exists(path / kRecipeFile);
    if (!resume) fs::remove_all(path);  // what a killed process left before it had a recipe
    return RunFolder(path, resume);
  }

  const Place& place_;
  Recipe recipe_;
  RunFolder folder_;
  CausalLM model_;
  std::unique_ptr<Trainer> trainer_;
};

Recipe recipe_of(const Json& key, const Place& place) {
  Recipe recipe;
  recipe.model = "model";
  set_values(recipe, key["train"]);
  recipe.device = place.device;
  recipe.save_minutes = place.save_minutes;
  recipe.log_every = 1;
  recipe.keep = 1;
  return recipe;
}

// Runs the trainer. Nothing if it was stopped; else the reason for which training failed, or an empty text.
std::optional<std::string> train(Session& session, const Progress& progress, const std::function<bool()>& should_stop,
                                 const std::function<bool()>& is_enough = {}) {
  Trainer& trainer = session.trainer();
  bool stopped = false;
  double speed = 0;
  trainer.on_step = [&](const Json& row) {
    const auto now = row["tokens_per_s"].get<double>();
    speed = speed == 0 ? now : 0.9 * speed + 0.1 * now;
    if (progress) progress(row["step"].get<int64_t>(), session.recipe().steps, speed, row["loss"].get<double>());
  };
  trainer.should_stop = [&] {
    if (is_enough && is_enough()) return true;
    if (!should_stop || !should_stop() || trainer.step() == session.recipe().steps) return false;
    stopped = true;
    trainer.save_at_end = true;
    return true;
  };
  try {
    trainer.run();
  } catch (const TrainingError& e) {
    return e.what();
  }
  return stopped ? std::nullopt : std::optional(std::string());
}

at::Tensor windows(const TokenData& data, int64_t first, int64_t count, int64_t T) {
  const at::Tensor ids = at::empty({count, T + 1}, at::kLong);
  auto* out = ids.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) data.read((first + i) * T, {out + i * (T + 1), static_cast<size_t>(T + 1)});
  return ids;
}

// Mean loss of windows first .. first + count - 1 of T tokens at each position.
at::Tensor mean_losses(const CausalLM& model, const Weights& w, const TokenData& data, int64_t first, int64_t count, int64_t T) {
  const int64_t together = std::max<int64_t>(1, kTokensAtOnce / T);
  at::Tensor sum = at::zeros({T}, at::kDouble);
  for (int64_t i = 0; i < count; i += together) {
    const int64_t now = std::min(together, count - i);
    sum += loss_by_position(model, w, windows(data, first + i, now, T)) * static_cast<double>(now);
  }
  return sum / static_cast<double>(count);
}

// The first half of the validation text decides between learning rates; the second half is reported.
void measure_text(Json& result, const Json& key, const CausalLM& model, const Recipe& recipe, const TokenData& validation) {
  const at::NoGradGuard no_grad;
  const Weights w = model.weights(compute_type(recipe));
  const int64_t T = recipe.context, all = (validation.tokens() - 1) / T, half = all / 2;
  if (half < 1)
    throw io::FileError(validation.folder(), "has " + std::to_string(validation.tokens()) + " tokens, wanted at least two windows of " +
                                                 std::to_string(T) + " and one token");
  result["tuning_loss"] = mean_losses(model, w, validation, 0, half, T).mean().item<double>();
  result["loss"] = mean_losses(model, w, validation, half, all - half, T).mean().item<double>();
  const auto length = key["measures"]["length"].get<int64_t>();
  if (length <= 1) return;
  const int64_t longest = length * T, there = (validation.tokens() - 1) / longest;
  const int64_t count = std::min(there, key["measures"]["sequences"].get<int64_t>());
  if (count < 1)
    throw io::FileError(validation.folder(), "has " + std::to_string(validation.tokens()) + " tokens, wanted more than the " +
                                                 std::to_string(longest) + " of one sequence to extrapolate to");
  const at::Tensor losses = mean_losses(model, w, validation, 0, count, longest);
  // Means over halves of a training context: the first bucket beyond it is the third.
  const int64_t bucket = std::max<int64_t>(1, T / 2);
  Json buckets = Json::array();
  for (int64_t at = 0; at + bucket <= longest; at += bucket)
    buckets.push_back({at + bucket, short_number(losses.narrow(0, at, bucket).mean().item<double>())});
  result["by_position"] = buckets;
  result["long_sequences"] = count;
}

std::optional<Json> run_text(const Json& key, const Place& place, const Progress& progress, const std::function<bool()>& should_stop,
                             bool measures = true) {
  const Recipe recipe = recipe_of(key, place);
  const TokenData data = TokenData::open(place.data), validation = TokenData::open(place.validation);
  BatchOptions options;
  options.T = recipe.context;
  options.B = recipe.batch / recipe.accumulate;
  options.seed = recipe.seed;
  options.reset_documents = recipe.reset_documents;
  const Batches batches(data, options);
  const BatchSource source = [&](int64_t index) {
    const Batch batch = batches.at(index);
    return TrainBatch{batch.ids.narrow(1, 0, options.T), batch.ids.narrow(1, 1, options.T),
                      recipe.reset_documents ? batch.cu_seqlens : std::nullopt};
  };
  Session session(key, place, recipe, source);
  if (data.vocab_size() > session.model().config().vocab_size) {
    throw io::FileError(data.folder(), "has " + std::to_string(data.vocab_size()) + " tokens in its vocabulary, the model " +
                                           std::to_string(session.model().config().vocab_size));
  }
  const std::optional<std::string> failed = train(session, progress, should_stop);
  if (!failed) return std::nullopt;
  Json result = session.facts(session.trainer().step() * recipe.batch * recipe.context);
  if (failed->empty() && measures) {
    measure_text(result, key, session.model(), recipe, validation);
  } else if (!failed->empty()) {
    result["failed"] = *failed;
  }
  return result;
}

// The checkpoint after the last step of the run `key` in a folder; empty if there is none.
fs::path trained_in(const fs::path& folder, const Json& key) {
  if (folder.empty() || !fs::exists(folder / kRecipeFile)) return {};
  const std::vector<RunCheckpoint> checkpoints = run_checkpoints(folder);
  return checkpoints.empty() || checkpoints.back().step != key["train"]["steps"].get<int64_t>() ? fs::path() : checkpoints.back().path;
}

std::optional<Json> run_needles(const Json& key, const Place& place, const Progress& progress, const std::function<bool()>& should_stop) {
  Json result = {{"tokens", 0}};
  NeedleSearch search;
  search.device = place.device;
  search.needles = key["needles"];
  search.kept = place.folder / "needles";
  std::unique_ptr<Tokenizer> tokenizer;
  if (key.contains("model")) {
    search.checkpoint = place.model;
    const ModelConfig config = ModelConfig::read(place.model / "config.json");
    tokenizer = checkpoint_tokenizer(place.model, config);
    search.bos = eval::checkpoint_puts_bos(place.model, *tokenizer);
  } else {
    const Json& run = key["run"];
    search.checkpoint = trained_in(place.model, run);
    if (search.checkpoint.empty()) search.checkpoint = trained_in(place.folder, run);
    if (search.checkpoint.empty()) {
      Place training = place;
      training.keep = true;
      std::optional<Json> trained = run_text(run, training, progress, should_stop, false);
      if (!trained || trained->contains("failed")) return trained;
      result = std::move(*trained);
      result.erase("curve");  // the training run has it
      search.checkpoint = trained_in(place.folder, run);
    }
    const TokenData data = TokenData::open(place.data);
    tokenizer = load_tokenizer(data.tokenizer_file());
    search.bos = data.manifest().begin_mark.has_value();
    search.compute = compute_type(recipe_of(run, place));
  }
  search.tokenizer = tokenizer.get();
  const auto on_progress = [&](int64_t done, int64_t all) {
    if (progress) progress(done, all, 0, 0);
  };
  std::optional<Json> found = find_needles(search, on_progress, should_stop);
  if (!found) return std::nullopt;
  result["needles"] = std::move(*found);
  return result;
}

std::vector<MqarSegment> segments_of(const Json& list) {
  std::vector<MqarSegment> out;
  for (const Json& s : list) out.push_back({s[0].get<int64_t>(), s[1].get<int64_t>(), s[2].get<int64_t>()});
  return out;
}

std::optional<Json> run_mqar(const Json& key, const Place& place, const Progress& progress, const std::function<bool()>& should_stop) {
  const Json& m = key["mqar"];
  MqarTask task;
  task.vocab_size = m["vocab_size"].get<int64_t>();
  task.power = m["power"].get<double>();
  task.random_non_queries = m["random_non_queries"].get<bool>();
  Recipe recipe = recipe_of(key, place);
  // As in the origin, the seeds of the examples are drawn from the seed of the run, those of the tests apart from those of training.
  const MqarData train_data(task, segments_of(m["train"]), m["batch"].get<int64_t>(), mixed_seed(recipe.seed, 1));
  const MqarData test_data(task, segments_of(m["test"]), m["batch"].get<int64_t>(), mixed_seed(recipe.seed, 2));
  const auto epochs = m["epochs"].get<int64_t>(), test_batch = m["test_batch"].get<int64_t>();
  const int64_t each = train_data.batches();
  recipe.steps = epochs * each;
  recipe.batch = m["batch"].get<int64_t>();
  recipe.context = 0;
  for (const MqarSegment& s : train_data.segments()) recipe.context = std::max(recipe.context, s.length);
  Session session(key, place, recipe, [&](int64_t index) { return train_data.at(index); });
  Trainer& trainer = session.trainer();
  trainer.rate_of_step = [&](int64_t step) { return mqar_learning_rate(recipe.rate, step / each, epochs); };
  const auto compute = compute_type(recipe);
  MqarScore last;
  const auto is_enough = [&] {
    if (trainer.step() % each != 0) return false;
    last = mqar_score(session.model(), session.model().weights(compute), test_data, test_batch);
    session.folder().add_metrics({{"step", trainer.step()}, {"accuracy", last.pooled}});
    return last.pooled > m["enough"].get<double>();
  };
  const std::optional<std::string> failed = train(session, progress, should_stop, is_enough);
  if (!failed) return std::nullopt;
  const int64_t passes = trainer.step() / each;
  Json result = session.facts(passes * train_data.tokens());
  if (!failed->empty()) {
    result["failed"] = *failed;
    return result;
  }
  if (last.segments.empty())
    last = mqar_score(session.model(), session.model().weights(compute), test_data, test_batch);  // had ended before
  result["epochs"] = passes;
  result["accuracy"] = last.pooled;
  Json segments = Json::array(), learning = Json::array();
  for (size_t i = 0; i < last.segments.size(); ++i) {
    const MqarSegment& s = test_data.segments()[i];
    segments.push_back({s.length, s.pairs, short_number(last.segments[i])});
  }
  result["by_size"] = segments;
  for (const Json& row : session.folder().metrics()) {
    if (row.contains("accuracy")) learning.push_back({row["step"].get<int64_t>() / each, short_number(row["accuracy"].get<double>())});
  }
  result["learning"] = learning;
  return result;
}

}  // namespace

at::Tensor loss_by_position(const CausalLM& model, const Weights& w, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  const int64_t B = ids.size(0), T = ids.size(1) - 1;
  const at::Tensor hidden = model.forward(w, ids.narrow(1, 0, T).to(model.device())).hidden.flatten(0, 1);
  const at::Tensor targets = ids.narrow(1, 1, T).to(model.device()).flatten().unsqueeze(1);
  std::vector<at::Tensor> losses;
  for (int64_t at = 0; at < B * T; at += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, B * T - at);
    const at::Tensor logits = model.head(w, hidden.narrow(0, at, rows)).to(at::kFloat);
    losses.push_back(logits.logsumexp(1) - logits.gather(1, targets.narrow(0, at, rows)).squeeze(1));
  }
  return at::cat(losses).to(at::kDouble).view({B, T}).mean(0).cpu();
}

std::optional<Json> execute(const Json& key, const Place& place, const Progress& progress, const std::function<bool()>& should_stop) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::optional<Json> result = key["kind"] == "mqar"      ? run_mqar(key, place, progress, should_stop)
                               : key["kind"] == "needles" ? run_needles(key, place, progress, should_stop)
                                                          : run_text(key, place, progress, should_stop);
  if (!result) return result;
  // Of this session: loading, training and measuring. An interrupted run has had more.
  (*result)["seconds"] = short_number(std::chrono::duration<double>(Clock::now() - start).count());
  if (!place.keep) fs::remove_all(place.folder);
  return result;
}

}  // namespace cyfa::experiment
