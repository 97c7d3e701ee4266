// Tests training on several ranks, which are threads of this process here: gradients that are summed in buckets, sharded optimizers, and
// sequences that are cut over ranks. tests/python/ranks_test.py tests real processes.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>

#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/train/trainer.h"
#include "tests/model/small_model.h"
#include "tests/train/rank_threads.h"

namespace cyfa::test {
namespace {

double difference(const at::Tensor& a, const at::Tensor& b, double least = 1e-30) {
  return ((a - b).norm() / b.norm().clamp_min(least)).item<double>();
}

CausalLM double_model(const Json& config) {
  CausalLM model(ModelConfig::parse(config));
  model.initialise(3, at::kDouble);
  for (at::Tensor& p : model.parameters()) p = (p + 0.05 * at::randn_like(p)).requires_grad_();
  return model;
}

struct Split {
  std::vector<int64_t> bounds;                     // of the ranks' stretches
  std::optional<std::vector<int64_t>> cu_seqlens;  // absent: the rows
};

std::vector<Split> splits() {
  return {{{0, 20, 40, 60}, {}},                             // the rows exactly
          {{0, 17, 43, 60}, {}},                             // each rank but one begins inside a row
          {{0, 31, 60}, {{0, 60}}},                          // one sequence
          {{0, 1, 2, 40, 60}, {{0, 60}}},                    // ranks of a single token
          {{0, 3, 29, 30, 60}, {{0, 5, 5, 7, 30, 33, 60}}},  // packed, over borders, and borders at ranks' borders
          {{0, 15, 30, 45, 60}, {{0, 10, 60}}},              // a sequence over four ranks, and one before it
          {{0, 9, 11, 12, 13, 30, 45, 60}, {{0, 10, 60}}}};  // seven ranks: three rounds of the scan
}

TEST(ContextParallel, EqualsOneRankForEverySplit) {
  for (const ModelCase& c : model_cases()) {
    const bool flow = c.name.starts_with("CyclicFlow"), gated = c.name.starts_with("RetNet") || c.name.starts_with("LinearAttention") ||
                                                                (c.name.starts_with("Mamba2") && c.name.find("3") == std::string::npos);
    if (!flow && !gated) continue;
    SCOPED_TRACE(c.name);
    at::manual_seed(11);
    CausalLM whole = double_model(c.config);
    const at::Tensor ids = random_ids(whole, {3, 21}, 5);
    const at::Tensor inputs = ids.narrow(1, 0, 20).contiguous();
    at::Tensor targets = ids.narrow(1, 1, 20).clone();
    targets[1].narrow(0, 3, 9).fill_(ops::kIgnore);
    const double counted = targets.ne(ops::kIgnore).sum().item<double>();
    for (const Split& split : splits()) {
      if (!flow && split.bounds.size() == 4) continue;                          // the baselines share what these test
      if (flow && c.name != "CyclicFlow" && split.bounds.size() > 5) continue;  // and so do CyFA's variants
      const auto borders = split.cu_seqlens ? std::optional(at::tensor(*split.cu_seqlens, at::kLong)) : std::nullopt;
      for (at::Tensor& p : whole.parameters()) p.mutable_grad().reset();
      const at::Tensor loss =
          whole.loss(whole.weights(), borders ? inputs.reshape({1, -1}) : inputs, borders ? targets.reshape({1, -1}) : targets, borders);
      loss.backward();
      const auto ranks = static_cast<int>(split.bounds.size()) - 1;
      std::vector<std::vector<at::Tensor>> grads(static_cast<size_t>(ranks));
      std::vector<double> losses(static_cast<size_t>(ranks));
      std::vector<CausalLM> models(static_cast<size_t>(ranks), whole);
      for (CausalLM& model : models) {
        for (at::Tensor& p : model.parameters()) p = p.detach().clone().requires_grad_();
      }
      on_ranks(ranks, [&](const Group& group) {
        const auto rank = static_cast<size_t>(group.rank());
        CausalLM& model = models[rank];
        const CutBatch batch = cut_batch(group, inputs, targets, borders, split.bounds);
        const double share = batch.targets.ne(ops::kIgnore).sum().item<double>() / counted;
        const at::Tensor part =
            model.loss(model.weights().with_cut(batch.cut), batch.inputs, batch.targets, batch.cu_seqlens, group.size() % 2 == 0) * share;
        part.backward();
        losses[rank] = part.item<double>();
        for (const at::Tensor& p : model.parameters()) grads[rank].push_back(p.grad());
      });
      double sum = 0;
      for (const double part : losses) sum += part;
      EXPECT_NEAR(sum, loss.item<double>(), 1e-10);
      double scale = 0;
      for (const at::Tensor& p : whole.parameters()) scale = std::max(scale, p.grad().norm().item<double>());
      for (size_t id = 0; id < whole.parameters().size(); ++id) {
        at::Tensor all = at::zeros_like(whole.parameters()[id]).detach();
        for (const auto& rank : grads) {
          if (rank[id].defined()) all += rank[id];
        }
        EXPECT_LT(difference(all, whole.parameters()[id].grad(), 1e-3 * scale), 1e-9)
            << whole.table().specs()[id].name << ", " << ranks << " ranks";
      }
    }
  }
}

// Per layer a rank sends states of a size of their own, one in each round of a scan, and some rows to the next rank.
TEST(ContextParallel, TrafficDoesNotGrowWithTheSequence) {
  for (const ModelCase& c : model_cases()) {
    const bool conv = c.name == "CyclicFlow";
    if (!conv && c.name != "CyclicFlowNoShortConv") continue;
    const CausalLM model = small_model(c.config);
    const auto sent = [&](int ranks, int64_t T) {
      const at::Tensor ids = at::ones({1, T}, at::kLong), borders = at::tensor(std::vector<int64_t>{0, T}, at::kLong);
      std::vector<double> bytes(static_cast<size_t>(ranks));
      on_ranks(ranks, [&](const Group& group) {
        const at::NoGradGuard no_grad;
        const CutBatch batch = cut_batch(group, ids, ids, borders);
        model.loss(model.weights().with_cut(batch.cut), batch.inputs, batch.targets, batch.cu_seqlens);
        bytes[static_cast<size_t>(group.rank())] = group.traffic().bytes;
      });
      return bytes;
    };
    const double two = sent(2, 32)[0],
                 states = 4.0 * static_cast<double>(model.memory_scalars()) * static_cast<double>(model.layers().size());
    EXPECT_GT(two, states);
    EXPECT_LT(two, 1.5 * states);
    EXPECT_EQ(sent(2, 512)[0], two);
    EXPECT_EQ(sent(9, 72)[8], 0);  // nobody comes after it
    if (conv) continue;
    EXPECT_EQ(sent(5, 40)[0], 3 * two);  // rounds: by 1, and then by 1 and 2
    EXPECT_EQ(sent(9, 72)[0], 4 * two);
  }
}

TEST(ContextParallel, RefusesOtherMixersInWords) {
  for (const ModelCase& c : model_cases()) {
    if (c.name != "Transformer" && c.name != "Gla" && !c.name.starts_with("DeltaNet") && !c.name.starts_with("Mamba3")) continue;
    CausalLM model = small_model(c.config);
    on_ranks(2, [&](const Group& group) {
      Recipe recipe;
      recipe.model = "small";
      recipe.context_ranks = 2;
      try {
        const Trainer trainer(model, recipe, {}, {}, nullptr, {}, group);
        ADD_FAILURE() << c.name;
      } catch (const std::invalid_argument& e) {
        EXPECT_NE(std::string(e.what()).find("context_ranks is 2"), std::string::npos) << e.what();
      }
    });
  }
  const at::Tensor ids = at::zeros({1, 1}, at::kLong);
  on_ranks(2, [&](const Group& group) { EXPECT_THROW(cut_batch(group, ids, ids, std::nullopt), std::invalid_argument); });
}

Recipe recipe_of(const std::string& shard) {
  Recipe r;
  r.model = "small";
  r.steps = 5;
  r.batch = 12;
  r.accumulate = 2;
  r.context = 16;
  r.rate = 3e-3;
  r.eps = 1e-2;  // far above most gradients: AdamW then enlarges no rounding
  r.warmup = 0;
  r.shard = shard;
  r.bucket_mb = 0.01;
  return r;
}

// A rank's rows of the micro-batches that one rank would have. Some targets are ignored, more of them in some rows than in others.
BatchSource rows_of(const CausalLM& model, const Group& group) {
  return [&model, rank = group.rank(), ranks = group.size()](int64_t index) {
    // With a generator of its own: ranks are threads, which share torch's default one.
    const at::Generator random = at::detail::createCPUGenerator(500 + static_cast<uint64_t>(index));
    const at::Tensor ids = at::randint(3, model.config().vocab_size, {6, 17}, random, at::kLong);
    at::Tensor targets = ids.narrow(1, 1, 16).clone();
    targets[0].narrow(0, 0, 12).fill_(ops::kIgnore);
    const int64_t rows = 6 / ranks;
    return TrainBatch{ids.narrow(0, rank * rows, rows).narrow(1, 0, 16), targets.narrow(0, rank * rows, rows), std::nullopt};
  };
}

constexpr double kBf16Rounding = 1.0 / 256;  // of a parameter, some steps after gradients that are products in bf16

TEST(DataParallel, RanksTrainAsOneAndStayEqualToTheBit) {
  CausalLM whole = small_model(small_config(2));
  Trainer alone(whole, recipe_of("none"), rows_of(whole, {}), rows_of(whole, {}), nullptr);
  alone.run();
  for (const char* shard : {"none", "optimizer"}) {
    std::vector<CausalLM> models(3, small_model(small_config(2)));
    for (CausalLM& model : models) {
      for (at::Tensor& p : model.parameters()) p = p.detach().clone();
    }
    std::vector<double> losses(3);
    on_ranks(3, [&](const Group& group) {
      CausalLM& model = models[static_cast<size_t>(group.rank())];
      Recipe r = recipe_of(shard);
      r.eval_batches = 16;
      Trainer trainer(model, r, rows_of(model, group), rows_of(model, group), nullptr, group);
      trainer.run();
      losses[static_cast<size_t>(group.rank())] = trainer.evaluate();
    });
    for (size_t id = 0; id < whole.parameters().size(); ++id) {
      const std::string& name = whole.table().specs()[id].name;
      EXPECT_LT(difference(models[0].parameters()[id], whole.parameters()[id], 1e-3), 2e-6) << shard << " " << name;
      for (const CausalLM& model : models) EXPECT_TRUE(at::equal(model.parameters()[id], models[0].parameters()[id])) << name;
    }
    const double loss = Trainer(models[0], recipe_of("none"), {}, rows_of(models[0], {}), nullptr).evaluate();
    EXPECT_NEAR(losses[0], loss, 1e-6);
    EXPECT_EQ(losses[0], losses[2]);
  }
}

TEST(DataParallel, AModelIsWholeWhenItsRunEnds) {
  std::vector<CausalLM> models;
  for (int rank = 0; rank < 2; ++rank) models.push_back(small_model(small_config(2)));
  on_ranks(2, [&](const Group& group) {
    CausalLM& model = models[static_cast<size_t>(group.rank())];
    Trainer(model, recipe_of("optimizer"), rows_of(model, group), {}, nullptr, group).run();
  });
  for (size_t id = 0; id < models[0].parameters().size(); ++id) {
    EXPECT_TRUE(at::equal(models[0].parameters()[id], models[1].parameters()[id])) << models[0].table().specs()[id].name;
  }
}

// Collectives whose all-gathers arrive when they are waited for: until then there are NaNs. Notes the waits between the operations.
class Late final : public Collectives {
 public:
  Late(std::shared_ptr<Room> room, int rank) : now_(std::move(room), rank) {}

  void all_reduce(const at::Tensor& x) override { now_.all_reduce(x); }
  void reduce_scatter(const at::Tensor& part, const at::Tensor& x) override { now_.reduce_scatter(part, x); }
  void all_gather(const at::Tensor& all, const at::Tensor& part) override {
    if (all.scalar_type() != at::kFloat && all.scalar_type() != at::kBFloat16) return now_.all_gather(all, part);  // numbers
    at::Tensor content = at::empty_like(all);
    now_.all_gather(content, part);
    all.fill_(NAN);
    coming_.emplace_back(all, content);
  }
  at::Tensor exchange(const at::Tensor& x, int to, int from) override { return now_.exchange(x, to, from); }
  void finish(const at::Tensor& result) override {
    const auto found = std::find_if(coming_.begin(), coming_.end(), [&](const auto& one) { return one.first.is_same(result); });
    if (found == coming_.end()) return;
    found->first.copy_(found->second);
    coming_.erase(found);
    events += 'w';
  }
  static thread_local std::string events;  // of this rank: w a wait for parameters, e the embedding of a forward, which comes first in it

 private:
  InRoom now_;
  std::vector<std::pair<at::Tensor, at::Tensor>> coming_;
};
thread_local std::string Late::events;

TEST(ShardedOptimizer, ParametersArriveWhileTheNextForwardRuns) {
  for (const auto& [recompute, dtype] :
       {std::pair(false, "fp32"), std::pair(true, "fp32"), std::pair(false, "bf16"), std::pair(true, "bf16")}) {
    std::vector<CausalLM> models(4, small_model(small_config(2)));
    for (CausalLM& model : models) {
      for (at::Tensor& p : model.parameters()) p = p.detach().clone();
    }
    const auto train = [&](CausalLM& model, const Group& group) {
      Recipe r = recipe_of("optimizer");
      r.recompute = recompute;
      r.dtype = dtype;
      r.bucket_mb = 0.001;
      Trainer(model, r, rows_of(model, group), rows_of(model, group), nullptr, group).run();
    };
    on_ranks(2, [&](const Group& group) { train(models[static_cast<size_t>(group.rank())], group); });
    const auto room = std::make_shared<Room>(2);
    std::vector<std::string> events(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& op) {
                                                         if (std::string_view(op.name()) == "aten::embedding") Late::events += 'e';
                                                         return std::unique_ptr<at::ObserverContext>();
                                                       }).scopes({at::RecordScope::FUNCTION}));
        train(models[static_cast<size_t>(2 + rank)], Group(std::make_shared<Late>(room, rank), rank, 2));
        at::removeCallback(handle);
        events[static_cast<size_t>(rank)] = Late::events;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t id = 0; id < models[0].parameters().size(); ++id) {
      EXPECT_TRUE(at::equal(models[2].parameters()[id], models[0].parameters()[id])) << models[0].table().specs()[id].name;
    }
    // A later step: its first parameters, the embedding, the others; then the second micro-batch, which waits for none. Without late
    // reading all waits would come before the first of the two embeddings.
    EXPECT_NE(events[0].find("weww"), std::string::npos) << events[0];
  }
}

class NotFinite : public testing::TestWithParam<const char*> {};

TEST_P(NotFinite, AllRanksRefuseItAndNameTheRank) {
  std::vector<std::string> errors(2);
  std::vector<CausalLM> models(2, small_model(small_config(1)));
  on_ranks(2, [&](const Group& group) {
    CausalLM& model = models[static_cast<size_t>(group.rank())];
    for (at::Tensor& p : model.parameters()) p = p.detach().clone();
    const std::vector<at::Tensor> before = [&] {
      std::vector<at::Tensor> all;
      for (const at::Tensor& p : model.parameters()) all.push_back(p.detach().clone());
      return all;
    }();
    Recipe r = recipe_of("optimizer");
    r.dtype = GetParam();
    Trainer trainer(
        model, r,
        [&](int64_t index) {
          if (group.rank() == 1) model.parameters().back().data().fill_(NAN);
          return rows_of(model, group)(index);
        },
        {}, nullptr, group);
    try {
      trainer.run();
    } catch (const TrainingError& e) {
      errors[static_cast<size_t>(group.rank())] = e.what();
    }
    if (group.rank() == 1) return;
    for (size_t id = 0; id < before.size(); ++id) {
      EXPECT_TRUE(at::equal(model.parameters()[id], before[id].to(model.parameters()[id].scalar_type())));
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 1: "), std::string::npos) << error;
    EXPECT_EQ(error.find("rank 0: "), std::string::npos) << error;
  }
  EXPECT_EQ(errors[0], errors[1]);
}

INSTANTIATE_TEST_SUITE_P(DataParallel, NotFinite, testing::Values("fp32", "bf16"), [](const auto& type) { return type.param; });

// Each rank writes some files of the weights and its part of the moments, beside training. Any number of ranks goes on from them.
TEST(RunFolder, RanksWriteACheckpointTogetherAndResumeBitForBit) {
  for (const auto& [shard, dtype] : {std::pair("none", "fp32"), std::pair("optimizer", "fp32"), std::pair("optimizer", "bf16")}) {
    SCOPED_TRACE(std::string(shard) + " " + dtype);
    const bool masters = std::string_view(dtype) == "bf16";
    const Folder folder;
    const std::filesystem::path run = folder / "run";
    // Trains to the last step, from the checkpoint of step 2 if `resume`; returns the parameters of rank 0.
    const auto train = [&](int ranks, bool resume) {
      std::vector<CausalLM> models;
      for (int rank = 0; rank < ranks; ++rank) {
        models.push_back(resume ? load_checkpoint(run / "checkpoints" / step_name(2), {at::kFloat, at::kCPU, true})
                                : small_model(small_config(2)));
        for (at::Tensor& p : models.back().parameters()) p = p.detach().clone();
      }
      on_ranks(ranks, [&](const Group& group) {
        CausalLM& model = models[static_cast<size_t>(group.rank())];
        Recipe r = recipe_of(shard);
        r.dtype = dtype;
        r.steps = 4;
        r.save_every = 2;
        r.save_in_background = !resume;
        RunFolder to(folder / (resume ? "again-" + std::to_string(ranks) : "run"), false, group.leads());
        to.join(group);
        to.smallest_weight_file = 1000;
        to.start(r, Json::object());
        Trainer trainer(model, r, rows_of(model, group), {}, &to, group);
        if (resume) trainer.resume(run_checkpoints(run).at(0));
        EXPECT_EQ(trainer.run(), 4);
      });
      return models[0].parameters();
    };
    const std::vector<at::Tensor> whole = train(3, false);
    const std::vector<RunCheckpoint> saved = run_checkpoints(run);
    ASSERT_EQ(saved.size(), 2U);
    EXPECT_TRUE(std::filesystem::exists(saved[1].path / kWeightIndex));
    EXPECT_FALSE(std::filesystem::exists(saved[1].path / "model.safetensors"));
    EXPECT_TRUE(std::filesystem::exists(saved[1].path / "optimizer-00003-of-00003.safetensors"));
    const CausalLM stored = load_checkpoint(saved[1].path);
    const std::vector<at::Tensor> three = train(3, true);
    train(2, true);
    const CausalLM again = load_checkpoint(folder / "again-3" / "checkpoints" / step_name(4));
    const CausalLM other = load_checkpoint(folder / "again-2" / "checkpoints" / step_name(4));
    for (size_t id = 0; id < whole.size(); ++id) {
      const std::string& name = stored.table().specs()[id].name;
      const bool rounded = masters && stored.table().specs()[id].role == Role::kMatrix;
      EXPECT_EQ(whole[id].scalar_type(), rounded ? at::kBFloat16 : at::kFloat) << name;
      EXPECT_EQ(stored.parameters()[id].scalar_type(), at::kFloat) << name;  // a checkpoint is exact
      EXPECT_TRUE(at::equal(stored.parameters()[id].to(whole[id].scalar_type()), whole[id])) << name;
      EXPECT_TRUE(at::equal(three[id], whole[id])) << name;
      EXPECT_TRUE(at::equal(again.parameters()[id], stored.parameters()[id])) << name;
      EXPECT_LT(difference(other.parameters()[id], stored.parameters()[id], 1e-3), masters ? kBf16Rounding : 2e-6) << name;
    }
  }
}

Recipe bf16_recipe(const std::string& shard) {
  Recipe r = recipe_of(shard);
  r.dtype = "bf16";
  r.accumulate = 3;  // parts of a step whose gradients are bf16, and their sum is not
  r.batch = 18;
  r.clip = 0;  // the norm is summed in another order
  r.eval_batches = 2;
  return r;
}

// What training in bf16 on several ranks leaves: the models of the ranks, the losses of validation, and the checkpoint.
struct Trained {
  std::vector<CausalLM> models;
  std::vector<double> losses;
  CausalLM saved;
};

// `own_rows(index, rank)` are a rank's rows. Goes on from `from`, if there is one; the whole batch is that of 18 rows.
template <class Rows>
Trained train_in_bf16(const Recipe& r, int ranks, const Rows& own_rows, const std::optional<RunCheckpoint>& from = std::nullopt,
                      const std::filesystem::path& keep = {}) {
  const Folder folder;
  const std::filesystem::path path = keep.empty() ? folder / "run" : keep;
  Trained t = {std::vector<CausalLM>(static_cast<size_t>(ranks), small_model(small_config(2))),
               std::vector<double>(static_cast<size_t>(ranks)), small_model(small_config(1))};
  const auto work = [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    CausalLM& model = t.models[rank];
    if (from) model = load_checkpoint(from->path, {at::kFloat, at::kCPU, true});
    for (at::Tensor& p : model.parameters()) p = p.detach().clone();
    RunFolder to(path, false, group.leads());
    to.join(group);
    to.start(r, Json::object());
    const BatchSource rows = [&](int64_t index) { return own_rows(index, group.rank()); };
    Trainer trainer(model, r, rows, rows, &to, group);
    if (from) trainer.resume(*from);
    trainer.run();
    t.losses[rank] = trainer.evaluate();
  };
  if (ranks == 1) {
    work({});
  } else {
    on_ranks(ranks, work);
  }
  t.saved = load_checkpoint(run_checkpoints(path).back().path, {at::kFloat, at::kCPU, true});
  return t;
}

// Rows `first` to `first + count - 1` of the six of a micro-batch. `ignored`: none of their targets counts.
TrainBatch some_rows(int64_t index, int64_t first, int64_t count, bool ignored = false) {
  const at::Generator random = at::detail::createCPUGenerator(900 + static_cast<uint64_t>(index));
  const at::Tensor ids = at::randint(3, 61, {6, 17}, random, at::kLong);
  at::Tensor targets = ids.narrow(1, 1, 16).clone();
  if (ignored) targets.fill_(ops::kIgnore);
  return {ids.narrow(0, first, count).narrow(1, 0, 16), targets.narrow(0, first, count), std::nullopt};
}

// Each rank keeps the exact values of a part, and bf16 of everything. All values are those of optimizers that keep everything in fp32.
TEST(ShardedMasters, AreTheParametersOfOneRankToTheBit) {
  // Rank 0 has all of the batch that counts, so that its gradients are those of one rank.
  const auto alone = [](int64_t index, int) { return some_rows(index, 0, 6); };
  const auto first = [](int64_t index, int rank) { return some_rows(index, 0, 6, rank > 0); };
  const Trained one = train_in_bf16(bf16_recipe("optimizer"), 1, alone);
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    const Trained many = train_in_bf16(bf16_recipe("optimizer"), ranks, first);
    for (size_t id = 0; id < one.saved.parameters().size(); ++id) {
      const std::string& name = one.saved.table().specs()[id].name;
      const at::Tensor& exact = many.saved.parameters()[id];
      EXPECT_TRUE(at::equal(exact, one.models[0].parameters()[id])) << name;
      for (const CausalLM& model : many.models) {
        const at::Tensor& p = model.parameters()[id];
        EXPECT_EQ(p.scalar_type(), one.saved.table().specs()[id].role == Role::kMatrix ? at::kBFloat16 : at::kFloat) << name;
        EXPECT_TRUE(at::equal(p, exact.to(p.scalar_type()))) << name;
      }
    }
    for (const double loss : many.losses) EXPECT_EQ(loss, one.losses[0]);
  }
}

TEST(ShardedMasters, TrainAsUnshardedRanksToTheBitAndAsOneRankWithinRounding) {
  const auto parts = [](int ranks) { return [rows = 6 / ranks](int64_t index, int rank) { return some_rows(index, rank * rows, rows); }; };
  const Trained one = train_in_bf16(bf16_recipe("none"), 1, parts(1));
  for (const int ranks : {2, 3, 6}) {
    SCOPED_TRACE(ranks);
    const Trained whole = train_in_bf16(bf16_recipe("none"), ranks, parts(ranks));
    const Trained sharded = train_in_bf16(bf16_recipe("optimizer"), ranks, parts(ranks));
    EXPECT_EQ(sharded.losses, whole.losses);
    EXPECT_NEAR(sharded.losses[0], one.losses[0], kBf16Rounding);
    for (size_t id = 0; id < one.saved.parameters().size(); ++id) {
      const std::string& name = one.saved.table().specs()[id].name;
      EXPECT_TRUE(at::equal(sharded.saved.parameters()[id], whole.saved.parameters()[id])) << name;
      EXPECT_LT(difference(sharded.saved.parameters()[id], one.saved.parameters()[id], 1e-3), kBf16Rounding) << name;
    }
  }
}

// A checkpoint does not say how it was divided: any number of ranks goes on from it, with a sharded optimizer or without.
TEST(ShardedMasters, GoOnFromAnyCheckpointAndGiveOneToAny) {
  const auto all_on_first = [](int64_t index, int rank) { return some_rows(index, 0, 6, rank > 0); };
  const Folder folder;
  Recipe begin = bf16_recipe("optimizer");
  begin.steps = 2;
  begin.schedule = "constant";
  const Trained sharded = train_in_bf16(begin, 3, all_on_first, std::nullopt, folder / "sharded");
  const Trained alone = train_in_bf16(begin, 1, all_on_first, std::nullopt, folder / "alone");
  const auto equal = [](const CausalLM& a, const CausalLM& b) {
    for (size_t id = 0; id < a.parameters().size(); ++id) {
      EXPECT_TRUE(at::equal(a.parameters()[id], b.parameters()[id])) << a.table().specs()[id].name;
    }
  };
  equal(sharded.saved, alone.saved);
  Recipe end = begin;
  end.steps = 4;
  const Trained wanted = train_in_bf16(end, 1, all_on_first);
  for (const char* from : {"sharded", "alone"}) {
    const RunCheckpoint checkpoint = run_checkpoints(folder / from).back();
    for (const auto& [ranks, shard] :
         {std::pair(1, "optimizer"), std::pair(2, "none"), std::pair(2, "optimizer"), std::pair(3, "optimizer")}) {
      SCOPED_TRACE(std::string(from) + " to " + std::to_string(ranks) + " ranks, shard = " + shard);
      end.shard = shard;
      equal(train_in_bf16(end, ranks, all_on_first, checkpoint).saved, wanted.saved);
    }
  }
}

// By which ranks on GPUs compare their parameters.
TEST(HashOfSums, SeesEveryBitAndTheOrderOfBlocks) {
  at::manual_seed(4);
  const std::vector<at::Tensor> tensors = {at::randn({3, 5000}), at::randn({7}).to(at::kBFloat16), at::randn({2, 4096}).to(at::kBFloat16),
                                           at::randn({9}, at::kDouble)};
  const uint64_t hash = hash_of_sums(tensors);
  const auto copies = [&] {
    std::vector<at::Tensor> all;
    for (const at::Tensor& x : tensors) all.push_back(x.clone());
    return all;
  };
  EXPECT_EQ(hash_of_sums(copies()), hash);
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const int64_t element : {int64_t{0}, tensors[i].numel() / 2, tensors[i].numel() - 1}) {
      std::vector<at::Tensor> changed = copies();
      static_cast<std::byte*>(changed[i].mutable_data_ptr())[element * changed[i].element_size()] ^= std::byte{1};
      EXPECT_NE(hash_of_sums(changed), hash) << i << " " << element;
    }
  }
  std::vector<at::Tensor> turned = copies();
  turned[2] = turned[2].flip(0);
  EXPECT_NE(hash_of_sums(turned), hash);
  std::swap(turned[1], turned[3]);
  EXPECT_NE(hash_of_sums(turned), hash);
}

TEST(ShardedMasters, SendTwoBytesForAMatrixElement) {
  std::map<std::string, double> sent;
  for (const char* dtype : {"fp32", "bf16"}) {
    on_ranks(2, [&](const Group& group) {
      CausalLM model = small_model(small_config(2));
      for (size_t id = 0; id < model.parameters().size(); ++id) {
        const bool rounded = std::string_view(dtype) == "bf16" && model.table().specs()[id].role == Role::kMatrix;
        if (rounded) model.parameters()[id] = model.parameters()[id].to(at::kBFloat16);
      }
      GradientExchange exchange(model, group, true, at::kFloat, 1 << 14);
      exchange.send_parameters();
      exchange.receive_parameters();
      if (group.leads()) sent[dtype] = group.traffic().bytes;
    });
  }
  const CausalLM model = small_model(small_config(2));
  double matrices = 0, others = 0;
  for (const ParameterSpec& spec : model.table().specs())
    (spec.role == Role::kMatrix ? matrices : others) += static_cast<double>(spec.numel());
  EXPECT_NEAR(sent["fp32"], 0.5 * (4 * matrices + 4 * others), 1000);
  EXPECT_NEAR(sent["bf16"], 0.5 * (2 * matrices + 4 * others), 1000);
}

TEST(ShardedOptimizer, StateIsReadByAnyNumberOfRanks) {
  const Folder folder;
  CausalLM model = small_model(small_config(1));
  const Recipe r = recipe_of("optimizer");
  const auto ranges = [&](int rank, int ranks) {
    return GradientExchange(model, Group(std::make_shared<InRoom>(nullptr, rank), rank, ranks), true, at::kFloat, 1 << 12).ranges();
  };
  const Optimizer fresh(model, r);
  for (at::Tensor& p : model.parameters()) p.mutable_grad() = at::randn_like(p);
  Optimizer whole(model, r);
  const std::vector<at::Tensor> grads = whole.gradients();
  whole.step(grads, 0.1, 0, at::ones({}, at::kDouble), at::zeros({}, at::kDouble));
  std::filesystem::create_directories(folder / "1");
  whole.save(folder / "1");
  // 1 rank to 3, to 2, to 1.
  std::filesystem::path last = folder / "1";
  for (const int ranks : {3, 2}) {
    const std::filesystem::path next = folder / std::to_string(ranks);
    std::filesystem::create_directories(next);
    int64_t elements = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      Optimizer part(model, r, ranges(rank, ranks), model.parameters());
      for (const ParameterRange& range : ranges(rank, ranks)) elements += range.length;
      part.load(last);
      part.save(next, rank, ranks);
    }
    EXPECT_EQ(elements, model.table().numel());
    EXPECT_TRUE(has_optimizer_state(next));
    last = next;
  }
  Optimizer back(model, r);
  back.load(last);
  std::filesystem::create_directories(folder / "back");
  back.save(folder / "back");
  const TensorFile first(folder / "1" / "optimizer.safetensors"), again(folder / "back" / "optimizer.safetensors");
  for (const std::string& name : first.file().names()) EXPECT_TRUE(at::equal(first.mapped(name), again.mapped(name))) << name;

  std::filesystem::remove(last / "optimizer-00001-of-00002.safetensors");
  EXPECT_THROW(back.load(last), io::FileError);
  CausalLM other = small_model(small_config(2));
  Optimizer of_other(other, r);
  EXPECT_THROW(of_other.load(folder / "3"), io::FileError);
}

}  // namespace
}  // namespace cyfa::test
