// Tests what the sm90 training engine does for several ranks, which are threads of this process and share one GPU here: sequences that are
// cut over ranks, gradients that are summed while backward runs, and parameters that arrive while forward runs.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>

#include "cyfa/mixers/cut.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/train/trainer.h"
#include "tests/gpu/fused_model.h"
#include "tests/train/rank_threads.h"

namespace cyfa::test {
namespace {

class GpuRanks : public OnGpu<> {};

CausalLM copy_of(const CausalLM& m, at::ScalarType type = at::kFloat) {
  CausalLM other(m.config());
  for (size_t id = 0; id < m.parameters().size(); ++id) {
    other.parameters()[id] = m.parameters()[id].detach().to(type, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  }
  return other;
}

struct Batch {
  at::Tensor inputs, targets;  // [3, 300]
  std::optional<at::Tensor> borders;
};

Batch batch_of(const CausalLM& m, const std::optional<std::vector<int64_t>>& borders) {
  const at::Tensor ids = random_ids(m, {3, 301}, 7).to(at::kCUDA);
  Batch batch = {ids.narrow(1, 0, 300).contiguous(), ids.narrow(1, 1, 300).clone(), {}};
  batch.targets.narrow(1, 40, 60).fill_(ops::kIgnore);
  if (borders) batch.borders = at::tensor(*borders, at::kLong);
  return batch;
}

struct Result {
  double loss = 0;
  std::vector<at::Tensor> grads;
};

std::vector<at::Tensor> taken_gradients(CausalLM& m) {
  std::vector<at::Tensor> grads;
  for (at::Tensor& p : m.parameters()) {
    grads.push_back(p.grad().defined() ? p.grad().to(at::kDouble) : at::zeros(p.sizes(), p.options().dtype(at::kDouble)).detach());
    p.mutable_grad().reset();
  }
  return grads;
}

Result whole(CausalLM& m, const Batch& batch, const std::string& engine_name, std::optional<at::ScalarType> compute) {
  const auto engine = prepare_training(m, {compute, engine_name});
  engine->begin_step(std::nullopt);
  const at::Tensor loss = engine->loss(batch.inputs, batch.targets, batch.borders);
  loss.backward();
  return {loss.item<double>(), taken_gradients(m)};
}

// The same by ranks, each with its stretch of the tokens: the sums of their losses and gradients.
Result cut(const CausalLM& m, const Batch& batch, const std::vector<int64_t>& bounds, bool recompute, bool recompute_rows = false) {
  const auto ranks = static_cast<int>(bounds.size()) - 1;
  const double counted = batch.targets.ne(ops::kIgnore).sum().item<double>();
  std::vector<CausalLM> models;
  for (int rank = 0; rank < ranks; ++rank) models.push_back(copy_of(m));
  std::vector<Result> parts(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    CausalLM& model = models[rank];
    const auto engine = prepare_training(model, {at::kBFloat16, "sm90", recompute, recompute_rows});
    const CutBatch own = cut_batch(group, batch.inputs, batch.targets, batch.borders, bounds);
    engine->begin_step(std::nullopt);
    engine->cut(own.cut);
    const double share = own.targets.ne(ops::kIgnore).sum().item<double>() / counted;
    const at::Tensor loss = engine->loss(own.inputs, own.targets, own.cu_seqlens) * share;
    loss.backward();
    parts[rank] = {loss.item<double>(), taken_gradients(model)};
  });
  Result sum = parts[0];
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    sum.loss += parts[rank].loss;
    for (size_t id = 0; id < sum.grads.size(); ++id) sum.grads[id] = sum.grads[id] + parts[rank].grads[id];
  }
  return sum;
}

struct Split {
  std::vector<int64_t> bounds;                     // of the ranks' stretches
  std::optional<std::vector<int64_t>> cu_seqlens;  // absent: the rows
};

TEST_F(GpuRanks, CutSequencesHaveTheLossAndGradientsOfWholeOnes) {
  const std::vector<Split> splits = {
      {{0, 451, 900}, {}},                                       // inside a row
      {{0, 300, 600, 900}, {}},                                  // the rows exactly
      {{0, 1, 2, 640, 900}, {{0, 900}}},                         // stretches shorter than the convolution
      {{0, 130, 131, 900}, {{0, 128, 900}}},                     // one of a single token, in a sequence over three ranks
      {{0, 3, 268, 269, 900}, {{0, 5, 5, 6, 270, 900}}},         // packed, over borders
      {{0, 270, 500, 700, 900}, {{0, 5, 5, 6, 270, 871, 900}}},  // a border at a rank's border, and ranks in the middle of a sequence
  };
  struct Case {
    ModelCase model;
    size_t splits;  // of those above, from the last one back
  };
  const std::vector<Case> cases = {
      {{"Plain", fusable_config(Json::object())}, splits.size()},
      {{"ConvBiasAndClock", fusable_config({{"conv_bias", true}, {"conv_size", 3}, {"clock_stop_gradient", false}})}, 4},
      {{"NoQkNorm", fusable_config({{"use_qk_norm", false}})}, 1},
      {{"NoShortConv", fusable_config({{"use_short_conv", false}})}, 1},
  };
  for (const Case& c : cases) {
    CausalLM m = model_on_gpu(c.model.config);
    CausalLM wide = copy_of(m, at::kDouble);
    for (size_t i = splits.size() - c.splits; i < splits.size(); ++i) {
      const Batch batch = batch_of(m, splits[i].cu_seqlens);
      const Result exact = whole(wide, batch, "portable", std::nullopt), plain = whole(m, batch, "portable", at::kBFloat16),
                   uncut = whole(m, batch, "sm90", at::kBFloat16);
      // A stretch begins with a given state, from which the kernels compute the gradient of the clock less precisely (sm90_backward.cu):
      // one stretch of all tokens shows by how much.
      const Result given = cut(m, batch, {0, 900}, false);
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(c.model.name + ", split " + std::to_string(i) + (recompute ? ", recomputed" : ""));
        const Result got = cut(m, batch, splits[i].bounds, recompute);
        EXPECT_NEAR(got.loss, exact.loss, 2 * std::abs(plain.loss - exact.loss) + 2e-3 * exact.loss);
        EXPECT_NEAR(got.loss, uncut.loss, 2e-3 * exact.loss);
        for (size_t id = 0; id < got.grads.size(); ++id) {
          const std::string& name = m.table().specs()[id].name;
          const double few = std::sqrt(std::max(1.0, 16.0 / static_cast<double>(got.grads[id].numel())));
          const double of_plain = distance(plain.grads[id], exact.grads[id]), of_given = distance(given.grads[id], exact.grads[id]);
          const double limit = std::max(3 * few * of_plain + 1e-2, 2 * of_given), error = distance(got.grads[id], exact.grads[id]);
          EXPECT_LT(error, limit) << name << ": the plain model's " << of_plain << ", one stretch's " << of_given;
          EXPECT_LT(distance(got.grads[id], uncut.grads[id]), limit) << name << ", against the uncut run";
          EXPECT_LT(of_given, 5 * few * of_plain + 1e-2) << name << ", one stretch: the plain model's " << of_plain;
        }
        if (i + 1 < splits.size()) continue;
        const Result again = cut(m, batch, splits[i].bounds, recompute, true);
        for (size_t id = 0; id < got.grads.size(); ++id) {
          EXPECT_TRUE(at::equal(again.grads[id], got.grads[id])) << m.table().specs()[id].name << ", rows computed again";
        }
      }
    }
  }
}

Json layers(int64_t count, const Json& keys) {
  Json config = fusable_config(keys);
  config["num_hidden_layers"] = count;
  return config;
}

const std::vector<ModelCase>& layered_cases() {
  static const std::vector<ModelCase> all = {
      {"Plain", layers(3, Json::object())},
      {"TiedHead", layers(3, {{"tie_word_embeddings", true}})},
      {"Hybrid", layers(3, {{"attn", Json::array({{{"layers", {1}}, {"num_heads", 4}, {"num_kv_heads", 2}}})}})},
  };
  return all;
}

TEST_F(GpuRanks, GradientsAreCompleteWhenTheEngineSaysSo) {
  for (const ModelCase& c : layered_cases()) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(c.name + (recompute ? ", recomputed" : ""));
      CausalLM m = model_on_gpu(c.config);
      const auto engine = prepare_training(m, {at::kBFloat16, "sm90", recompute});
      const size_t count = m.parameters().size();
      std::vector<ParameterId> order;
      std::vector<at::Tensor> then(count), first_layer(count);  // the gradient, and one of the first layer's, when it was complete
      ParameterId early = 0;                                    // a matrix of the first layer that the engine fuses
      engine->complete_early([&](ParameterId id) {
        const at::NoGradGuard no_grad;
        order.push_back(id);
        then[id] = m.parameters()[id].grad().clone();
        first_layer[id] = m.parameters()[early].grad().clone();
      });
      engine->begin_step(std::nullopt);
      std::vector<ParameterId> fused;  // last first
      for (ParameterId id = count; id-- > 0;) {
        if (m.parameters()[id].grad().defined()) fused.push_back(id);
      }
      for (const ParameterId id : fused) {
        if (m.table().specs()[id].role == Role::kMatrix) early = id;
      }
      ASSERT_LT(early, m.layers()[1].first);
      for (int part = 0; part < 2; ++part) {
        order.clear();
        const Batch batch = batch_of(m, std::nullopt);
        engine->loss(batch.inputs, batch.targets, batch.borders).backward();
        EXPECT_EQ(order, fused) << "part " << part;  // each once, the last layer first
        for (const ParameterId id : order) {
          const std::string& name = m.table().specs()[id].name;
          EXPECT_TRUE(at::equal(then[id], m.parameters()[id].grad())) << name << " has changed after it was complete, part " << part;
          if (part > 0 || id < m.layers()[1].first) continue;
          EXPECT_EQ(first_layer[id].count_nonzero().item<int64_t>(), 0) << name << ": the first layer's backward came before it";
        }
      }
      for (at::Tensor& p : m.parameters()) p.mutable_grad().reset();
    }
  }
}

// Counts the functions that torch runs on this thread.
class Operations {
 public:
  Operations()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
                                             ++count;
                                             return std::unique_ptr<at::ObserverContext>();
                                           }).scopes({at::RecordScope::FUNCTION}))) {}
  ~Operations() { at::removeCallback(handle_); }
  static thread_local int64_t count;

 private:
  at::CallbackHandle handle_;
};
thread_local int64_t Operations::count = 0;

TEST_F(GpuRanks, ParametersAreReadWhenTheyHaveArrived) {
  for (const ModelCase& c : layered_cases()) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(c.name + (recompute ? ", recomputed" : ""));
      CausalLM m = model_on_gpu(c.config), late = copy_of(m);
      const Operations operations;
      std::vector<int> arrivals(late.parameters().size());
      std::vector<int64_t> when(late.parameters().size());
      const auto wanted = prepare_training(m, {at::kBFloat16, "sm90", recompute});
      const auto engine = prepare_training(late, {at::kBFloat16, "sm90", recompute});
      ASSERT_TRUE(engine->read_late([&](ParameterId id) {
        const at::NoGradGuard no_grad;
        late.parameters()[id].detach().copy_(m.parameters()[id]);
        ++arrivals[id];
        when[id] = Operations::count;
      }));
      for (int step = 0; step < 2; ++step) {
        {
          const at::NoGradGuard no_grad;
          for (const at::Tensor& p : m.parameters()) p.detach().add_(at::randn_like(p), 1e-3);
          for (const at::Tensor& p : late.parameters()) p.detach().fill_(NAN);
        }
        std::fill(arrivals.begin(), arrivals.end(), 0);
        for (CausalLM* model : {&m, &late}) {
          for (at::Tensor& p : model->parameters()) p.mutable_grad().reset();
        }
        wanted->begin_step(std::nullopt);
        engine->begin_step(std::nullopt);
        EXPECT_EQ(arrivals, std::vector<int>(arrivals.size())) << "begin_step() reads no parameter";
        for (int part = 0; part < 2; ++part) {
          const Batch batch = batch_of(m, std::nullopt);
          const at::Tensor loss = wanted->loss(batch.inputs, batch.targets, batch.borders),
                           got = engine->loss(batch.inputs, batch.targets, batch.borders);
          EXPECT_EQ(got.item<float>(), loss.item<float>());
          EXPECT_EQ(arrivals, std::vector<int>(arrivals.size(), 1)) << "each once in a step, and all of them in its first forward";
          loss.backward();
          got.backward();
        }
        for (size_t id = 0; id < arrivals.size(); ++id) {
          EXPECT_TRUE(at::equal(late.parameters()[id].grad(), m.parameters()[id].grad())) << m.table().specs()[id].name;
        }
        // A layer's parameters arrive after the forward of the layer before, which takes many operations.
        for (size_t layer = 1; layer < m.layers().size(); ++layer) {
          EXPECT_GT(when[m.layers()[layer].first], when[m.layers()[layer - 1].first] + 10) << "layer " << layer;
        }
        EXPECT_GT(when[m.norm_weight()], when[m.layers().back().first] + 10);
      }
    }
  }
}

Recipe recipe_of(const std::string& shard) {
  Recipe r;
  r.model = "small";
  r.steps = 3;
  r.batch = 8;
  r.accumulate = 2;
  r.context = 100;
  r.rate = 3e-3;
  r.eps = 1e-2;  // far above most gradients: AdamW then enlarges no rounding
  r.warmup = 0;
  r.clip = 0;  // the norm of parts is summed in another order
  r.device = "cuda";
  r.dtype = "bf16";
  r.shard = shard;
  r.bucket_mb = 0.5;
  return r;
}

// A rank's rows of the micro-batches that one rank would have.
BatchSource rows_of(const CausalLM& model, const Group& group) {
  return [&model, rank = group.rank(), ranks = group.size()](int64_t index) {
    const at::Generator random = at::detail::createCPUGenerator(500 + static_cast<uint64_t>(index));  // ranks share torch's default one
    const at::Tensor ids = at::randint(3, model.config().vocab_size, {4, 101}, random, at::kLong);
    const int64_t rows = 4 / ranks;
    return TrainBatch{ids.narrow(0, rank * rows, rows).narrow(1, 0, 100), ids.narrow(0, rank * rows, rows).narrow(1, 1, 100), std::nullopt};
  };
}

// Notes for each rank the nodes of backward that run (n), the sums of gradients that begin (s), and the ends of steps (|).
class Noted final : public Collectives {
 public:
  Noted(std::shared_ptr<Room> room, int rank) : now_(std::move(room), rank) {}

  void all_reduce(const at::Tensor& x) override {
    if (x.is_cuda() && x.scalar_type() == at::kFloat) events += 's';
    now_.all_reduce(x);
  }
  void reduce_scatter(const at::Tensor& part, const at::Tensor& x) override {
    events += 's';
    now_.reduce_scatter(part, x);
  }
  void all_gather(const at::Tensor& all, const at::Tensor& part) override { now_.all_gather(all, part); }
  at::Tensor exchange(const at::Tensor& x, int to, int from) override { return now_.exchange(x, to, from); }
  void finish(const at::Tensor& result) override { now_.finish(result); }
  static thread_local std::string events;

 private:
  InRoom now_;
};
thread_local std::string Noted::events;

TEST_F(GpuRanks, RanksTrainAsOneAndSumWhileBackwardRuns) {
  const CausalLM start = model_on_gpu(layers(3, Json::object()));
  CausalLM alone = copy_of(start);
  Trainer one(alone, recipe_of("none"), rows_of(alone, {}), {}, nullptr);
  std::vector<double> losses;
  one.on_step = [&](const Json& row) { losses.push_back(row.at("loss").get<double>()); };
  one.run();
  ASSERT_EQ(one.engine().name(), "sm90");
  std::map<bool, CausalLM> unsharded;  // by recompute
  for (const char* shard : {"none", "optimizer"}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(std::string(shard) + (recompute ? ", recomputed" : ""));
      std::vector<CausalLM> models;
      for (int rank = 0; rank < 2; ++rank) models.push_back(copy_of(start));
      std::vector<std::string> events(2);
      std::vector<std::vector<double>> got(2);
      const auto room = std::make_shared<Room>(2);
      on_ranks(2, [&](const Group& in_room) {
        const auto rank = static_cast<size_t>(in_room.rank());
        const Group group(std::make_shared<Noted>(room, in_room.rank()), in_room.rank(), 2);
        const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
                                                         Noted::events += 'n';
                                                         return std::unique_ptr<at::ObserverContext>();
                                                       }).scopes({at::RecordScope::BACKWARD_FUNCTION}));
        Recipe r = recipe_of(shard);
        r.recompute = recompute;
        Trainer trainer(models[rank], r, rows_of(models[rank], group), {}, nullptr, group);
        trainer.on_step = [&](const Json& row) {
          got[rank].push_back(row.at("loss").get<double>());
          Noted::events += '|';
        };
        trainer.run();
        at::removeCallback(handle);
        events[rank] = Noted::events;
      });
      EXPECT_EQ(events[0], events[1]);
      for (size_t begin = 0; begin < events[0].size(); begin = events[0].find('|', begin) + 1) {
        const std::string step = events[0].substr(begin, events[0].find('|', begin) - begin);
        const size_t first = step.find('s'), last = step.rfind('n');
        ASSERT_NE(first, std::string::npos) << step;
        const auto sums = std::count(step.begin() + static_cast<int64_t>(first), step.begin() + static_cast<int64_t>(last), 's');
        EXPECT_GE(sums, 3) << "sums that begin while backward runs: " << step;
      }
      for (size_t step = 0; step < losses.size(); ++step) EXPECT_NEAR(got[0][step], losses[step], 2e-3 * losses[step]) << "step " << step;
      for (size_t id = 0; id < alone.parameters().size(); ++id) {
        const std::string& name = start.table().specs()[id].name;
        EXPECT_TRUE(at::equal(models[0].parameters()[id], models[1].parameters()[id])) << name << " differs between the ranks";
        const at::Tensor& from = start.parameters()[id];
        const double few = std::sqrt(std::max(1.0, 16.0 / static_cast<double>(from.numel())));
        if (std::string_view(shard) == "optimizer") {  // each rank keeps a part of the exact values, and has all of them rounded
          const at::Tensor &p = models[0].parameters()[id], &exact = unsharded.at(recompute).parameters()[id];
          EXPECT_EQ(p.scalar_type(), start.table().specs()[id].role == Role::kMatrix ? at::kBFloat16 : at::kFloat) << name;
          EXPECT_LT(distance(p, exact.to(p.scalar_type())), 1e-4) << name;
          continue;
        }
        EXPECT_LT(distance(models[0].parameters()[id] - from, alone.parameters()[id] - from), 0.3 * few) << name << ", its movement";
      }
      if (std::string_view(shard) == "none") unsharded.emplace(recompute, models[0]);
    }
  }
}

TEST_F(GpuRanks, CyfaIsCutOnSm90) {
  const CausalLM start = model_on_gpu(layers(2, Json::object()));
  CausalLM alone = copy_of(start);
  Trainer one(alone, recipe_of("none"), rows_of(alone, {}), {}, nullptr);
  std::vector<double> losses;
  one.on_step = [&](const Json& row) { losses.push_back(row.at("loss").get<double>()); };
  one.run();
  std::vector<CausalLM> models;
  for (int rank = 0; rank < 3; ++rank) models.push_back(copy_of(start));
  std::vector<std::vector<double>> got(3);
  on_ranks(3, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    Recipe r = recipe_of("optimizer");
    r.context_ranks = 3;
    Trainer trainer(models[rank], r, rows_of(models[rank], {}), {}, nullptr, group, group);
    EXPECT_EQ(trainer.engine().name(), "sm90");
    trainer.on_step = [&](const Json& row) { got[rank].push_back(row.at("loss").get<double>()); };
    trainer.run();
  });
  for (size_t step = 0; step < losses.size(); ++step) EXPECT_NEAR(got[0][step], losses[step], 2e-3 * losses[step]) << "step " << step;
  for (size_t id = 0; id < start.parameters().size(); ++id) {
    for (const CausalLM& m : models)
      EXPECT_TRUE(at::equal(m.parameters()[id], models[0].parameters()[id])) << start.table().specs()[id].name;
  }
}

}  // namespace
}  // namespace cyfa::test
