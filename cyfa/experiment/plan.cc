#include "cyfa/experiment/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cyfa::experiment {
namespace {

Json segments_json(const std::vector<MqarSegment>& segments) {
  Json all = Json::array();
  for (const MqarSegment& s : segments) all.push_back({s.length, s.pairs, s.examples});
  return all;
}

}  // namespace

double choice_of(const Json& result) {
  if (const auto loss = result.find("tuning_loss"); loss != result.end() && loss->is_number()) return loss->get<double>();
  if (const auto score = result.find("accuracy"); score != result.end() && score->is_number()) return -score->get<double>();
  return std::numeric_limits<double>::infinity();
}

Plan::Plan(const Experiment& experiment, const Json& data, const std::string& device)
    : experiment_(experiment), data_(data), device_(device) {}

Run Plan::run_of(const Variant& v, double rate, uint64_t seed) const {
  Recipe recipe = experiment_.train;
  recipe.rate = rate;
  recipe.seed = seed;
  Run run{v.name, rate, seed, {}};
  if (experiment_.kind == Kind::kMqar) {
    const MqarPlan& m = experiment_.mqar;
    Json train = decisive_values(recipe);
    for (const char* key : {"steps", "batch", "context", "accumulate", "reset_documents", "warmup", "schedule", "final_rate"})
      train.erase(key);
    run.key = {{"kind", "mqar"},
               {"config", v.config},
               {"train", train},
               {"mqar",
                {{"vocab_size", m.task.vocab_size},
                 {"power", m.task.power},
                 {"random_non_queries", m.task.random_non_queries},
                 {"train", segments_json(m.train)},
                 {"test", segments_json(m.test)},
                 {"batch", m.batch},
                 {"test_batch", m.test_batch},
                 {"epochs", m.epochs},
                 {"enough", m.enough}}}};
  } else {
    run.key = {{"kind", "text"},
               {"config", v.config},
               {"train", decisive_values(recipe)},
               {"measures", {{"length", experiment_.measures.length}, {"sequences", experiment_.measures.sequences}}},
               {"data", data_}};
  }
  return run;
}

std::vector<Run> Plan::speed_runs(const Variant& v) const {
  const SpeedPlan& s = experiment_.speed;
  std::vector<Run> runs;
  const auto add = [&](const char* kind, int64_t T, int64_t B) {
    Run run{v.name, 0, 0, {{"kind", kind}}};
    run.key[v.op.is_null() ? "config" : "op"] = v.op.is_null() ? v.config : v.op;
    run.key["T"] = T;
    run.key["B"] = B;
    run.key["repeats"] = s.repeats;
    run.key["dtype"] = experiment_.train.dtype;
    run.key["device"] = device_;
    runs.push_back(run);
  };
  for (const int64_t T : s.lengths) add(v.op.is_null() ? kTrainingSpeed : kOperatorSpeed, T, s.tokens / T);
  for (const int64_t context : s.contexts) {
    if (v.op.is_null()) add(kDecodingSpeed, context, 1);
  }
  return runs;
}

Json Plan::needles_json() const {
  const NeedlesPlan& n = experiment_.needles;
  return {{"tasks", n.tasks}, {"lengths", n.lengths}, {"samples", n.samples}, {"seed", n.seed}};
}

std::vector<Run> Plan::sweep(const Variant& v) const {
  if (experiment_.kind == Kind::kSpeed) return speed_runs(v);
  std::vector<Run> runs;
  if (!v.model.is_null()) return runs;
  for (const double rate : experiment_.rates) runs.push_back(run_of(v, rate, experiment_.seeds.front()));
  return runs;
}

std::optional<double> Plan::best_rate(const Variant& v, Results& results) const {
  std::optional<double> best;
  double least = std::numeric_limits<double>::infinity();
  for (const Run& run : sweep(v)) {
    const Json* result = results.find(run);
    if (result == nullptr) return std::nullopt;
    if (const double choice = choice_of(*result); choice < least) {
      least = choice;
      best = run.rate;
    }
  }
  return best;
}

std::vector<Run> Plan::repeats(const Variant& v, Results& results) const {
  if (experiment_.kind == Kind::kSpeed) return {};
  const std::optional<double> rate = best_rate(v, results);
  std::vector<Run> runs;
  if (!rate) return runs;
  for (size_t i = 1; i < experiment_.seeds.size(); ++i) runs.push_back(run_of(v, *rate, experiment_.seeds[i]));
  return runs;
}

std::vector<Run> Plan::needles(const Variant& v, Results& results) const {
  if (experiment_.kind != Kind::kNeedles) return {};
  if (!v.model.is_null()) {
    const Json model = {{"hash", v.model["hash"]}, {"tokenizer", v.model["tokenizer"]}};
    return {{v.name, 0, 0, {{"kind", "needles"}, {"model", model}, {"needles", needles_json()}}}};
  }
  const std::optional<double> rate = best_rate(v, results);
  std::vector<Run> runs;
  if (!rate) return runs;
  for (const uint64_t seed : experiment_.seeds) {
    Run run = run_of(v, *rate, seed);
    const Json* trained = results.find(run);
    if (trained == nullptr || trained->contains("failed")) continue;
    run.key = {{"kind", "needles"}, {"run", run.key}, {"needles", needles_json()}};
    runs.push_back(std::move(run));
  }
  return runs;
}

std::vector<Run> Plan::all_runs(const Variant& v, Results& results) const {
  std::vector<Run> all = sweep(v);
  for (const auto& more : {repeats(v, results), needles(v, results)}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::optional<Run> Plan::next(Results& results, const std::set<std::string>& under_way) const {
  for (const Variant& v : experiment_.variants) {
    for (const Run& run : all_runs(v, results)) {
      if (results.find(run) == nullptr && !under_way.contains(run.hash())) return run;
    }
  }
  return std::nullopt;
}

int64_t Plan::total() const {
  int64_t sum = 0;
  for (const Variant& v : experiment_.variants) sum += total(v);
  return sum;
}

int64_t Plan::total(const Variant& v) const {
  if (!v.model.is_null()) return 1;
  if (experiment_.kind == Kind::kSpeed) return static_cast<int64_t>(speed_runs(v).size());
  const auto seeds = static_cast<int64_t>(experiment_.seeds.size());
  return static_cast<int64_t>(experiment_.rates.size()) + seeds - 1 + (experiment_.kind == Kind::kNeedles ? seeds : 0);
}

int64_t Plan::finished(Results& results) const {
  int64_t count = 0;
  for (const Variant& v : experiment_.variants) {
    for (const Run& run : all_runs(v, results)) count += results.find(run) != nullptr ? 1 : 0;
  }
  return count;
}

double Plan::tokens_per_run() const {
  switch (experiment_.kind) {
    case Kind::kNeedles:
      if (std::all_of(experiment_.variants.begin(), experiment_.variants.end(), [](const Variant& v) { return !v.model.is_null(); })) break;
      [[fallthrough]];
    case Kind::kText:
      return static_cast<double>(experiment_.train.steps) * static_cast<double>(experiment_.train.batch * experiment_.train.context);
    case Kind::kMqar: {
      const MqarPlan& m = experiment_.mqar;
      return static_cast<double>(m.epochs) * static_cast<double>(MqarData(m.task, m.train, m.batch, 0).tokens());
    }
    case Kind::kSpeed: break;
  }
  return 0;
}

}  // namespace cyfa::experiment
