#include "cyfa/experiment/plan.h"

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
    for (const char* key : {"steps", "batch", "context", "accumulate", "reset_documents", "warmup", "schedule", "final_rate"}) train.erase(key);
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
  for (const int64_t T : s.lengths) {
    Run run{v.name, 0, 0, {{"kind", v.op.is_null() ? "training speed" : "operator speed"}}};
    run.key[v.op.is_null() ? "config" : "op"] = v.op.is_null() ? v.config : v.op;
    run.key["T"] = T;
    run.key["B"] = s.tokens / T;
    run.key["repeats"] = s.repeats;
    run.key["dtype"] = experiment_.train.dtype;
    run.key["device"] = device_;
    runs.push_back(run);
  }
  return runs;
}

std::vector<Run> Plan::sweep(const Variant& v) const {
  if (experiment_.kind == Kind::kSpeed) return speed_runs(v);
  std::vector<Run> runs;
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

std::optional<Run> Plan::next(Results& results, const std::set<std::string>& under_way) const {
  for (const Variant& v : experiment_.variants) {
    for (const auto& runs : {sweep(v), repeats(v, results)}) {
      for (const Run& run : runs) {
        if (results.find(run) == nullptr && !under_way.contains(run.hash())) return run;
      }
    }
  }
  return std::nullopt;
}

int64_t Plan::total() const {
  const size_t each = experiment_.kind == Kind::kSpeed ? experiment_.speed.lengths.size()
                                                       : experiment_.rates.size() + experiment_.seeds.size() - 1;
  return static_cast<int64_t>(experiment_.variants.size() * each);
}

int64_t Plan::finished(Results& results) const {
  int64_t count = 0;
  for (const Variant& v : experiment_.variants) {
    for (const auto& runs : {sweep(v), repeats(v, results)}) {
      for (const Run& run : runs) count += results.find(run) != nullptr ? 1 : 0;
    }
  }
  return count;
}

double Plan::tokens_per_run() const {
  switch (experiment_.kind) {
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
