// Tests the run folder and the watch over the loss: what a checkpoint holds, what stays, how a run goes back.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/train/trainer.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

namespace fs = std::filesystem;

Recipe recipe_of(int64_t steps) {
  Recipe r;
  r.model = "small";
  r.steps = steps;
  r.batch = 2;
  r.context = 16;
  r.rate = 3e-3;
  r.warmup = 0;
  r.log_every = 1;
  return r;
}

TrainBatch batch_of(const CausalLM& model, int64_t index) {
  const at::Tensor ids = random_ids(model, {2, 17}, 1000 + static_cast<uint64_t>(index));
  return {ids.narrow(1, 0, 16), ids.narrow(1, 1, 16), std::nullopt};
}

std::vector<int64_t> steps_of(const RunFolder& folder) {
  std::vector<int64_t> steps;
  for (const RunCheckpoint& c : folder.checkpoints()) steps.push_back(c.step);
  return steps;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Watch, TakesNoiseForNoise) {
  TrainingWatch watch;
  for (int64_t step = 1; step < 500; ++step) {
    const double noise = 0.2 * std::sin(static_cast<double>(step * step));
    EXPECT_FALSE(watch.add(step, 3 + 3.0 / static_cast<double>(step) + noise, 1 + noise)) << step;
  }
  EXPECT_FALSE(watch.sign());
}

TEST(Watch, NamesTheFirstSignAndForgetsItWhenTheLossReturns) {
  for (const bool of_norm : {false, true}) {
    TrainingWatch watch;
    for (int64_t step = 1; step <= 20; ++step) watch.add(step, 3, 1);
    EXPECT_TRUE(watch.add(21, of_norm ? 3 : 9, of_norm ? 50 : 1));
    EXPECT_FALSE(watch.add(22, 8, 50));
    EXPECT_EQ(watch.sign(), 21);
    watch = TrainingWatch::parse(Json::parse(watch.json().dump()));
    EXPECT_EQ(watch.sign(), 21);
    EXPECT_FALSE(watch.words().empty());
    EXPECT_FALSE(watch.add(23, 7, 50));  // high losses do not become the new range
    EXPECT_EQ(watch.sign(), 21);
    watch.add(24, 3, 1);
    EXPECT_FALSE(watch.sign());
  }
  EXPECT_FALSE(TrainingWatch::parse(Json::parse(R"({"losses": [1, "x"], "norms": []})")).sign());
}

// The parameters are spoiled after step 6: later checkpoints are no good, and the one of step 6 stays however many follow.
TEST(Trainer, KeepsAndNamesTheCheckpointFromBeforeTheFirstSign) {
  const Folder folder;
  CausalLM model = small_model(small_config(1));
  Recipe r = recipe_of(20);
  r.save_every = 2;
  RunFolder to(folder / "run", false);
  to.start(r, Json::object());
  std::string notes;
  {
    Trainer trainer(
        model, r,
        [&](int64_t index) {
          if (index == 6) model.parameters().back().data().mul_(300);
          if (index == 16) model.parameters().back().data().fill_(NAN);
          return batch_of(model, index);
        },
        {}, &to);
    trainer.on_note = [&](const std::string& note) { notes += note + "\n"; };
    try {
      trainer.run();
      FAIL();
    } catch (const TrainingError& e) {
      const std::string what = e.what();
      EXPECT_NE(what.find("step 17: "), std::string::npos) << what;
      EXPECT_NE(what.find("first sign of it was at step 7"), std::string::npos) << what;
      EXPECT_NE(what.find("step-00000006"), std::string::npos) << what;
      EXPECT_NE(what.find("--resume --from 6"), std::string::npos) << what;
    }
  }
  EXPECT_NE(notes.find("step 7: the loss was"), std::string::npos) << notes;
  EXPECT_EQ(steps_of(to), (std::vector<int64_t>{6, 14, 16}));

  // Back to step 6: what came later is moved aside, and the run goes on.
  const RunCheckpoint from = to.checkpoints().front();
  const fs::path aside = to.set_aside_after(6);
  EXPECT_TRUE(fs::exists(aside / "step-00000016" / kStepFile));
  EXPECT_NE(read_file(aside / "metrics.jsonl").find("\"step\":16"), std::string::npos);
  to.drop_metrics_after(6);
  EXPECT_EQ(to.metrics().size(), 6U);
  EXPECT_EQ(steps_of(to), (std::vector<int64_t>{6}));
  EXPECT_TRUE(to.set_aside_after(6).empty());
  CausalLM again = load_checkpoint(from.path, {at::kFloat, at::kCPU, true});
  Trainer trainer(
      again, r, [&](int64_t index) { return batch_of(again, index); }, {}, &to);
  trainer.resume(from);
  EXPECT_TRUE(trainer.warning().empty());
  EXPECT_EQ(trainer.run(), 20);
}

TEST(RunFolder, ACheckpointIsWhole) {
  const Folder folder;
  CausalLM model = small_model(small_config(1));
  Recipe r = recipe_of(3);
  r.save_every = 3;
  RunFolder to(folder / "run", false);
  to.start(r, Json::object());
  RunFacts facts;
  facts.data = "my|data";
  facts.data_hash = "00ff";
  facts.tokenizer = {std::byte{'s'}, std::byte{'p'}};
  facts.read = [](int64_t steps) { return std::vector<ReadText>{{18446744073709551615U, 7, 16, 0, 2 * steps}}; };
  to.describe(facts);
  Trainer trainer(
      model, r, [&](int64_t index) { return batch_of(model, index); }, {}, &to);
  trainer.run();
  const RunCheckpoint saved = to.checkpoints().back();
  EXPECT_EQ(saved.tokens, 3 * 2 * 16);
  EXPECT_GT(saved.seconds, 0);
  EXPECT_TRUE(saved.loss.has_value());
  EXPECT_EQ(saved.read, facts.read(3));
  EXPECT_EQ(read_file(saved.path / "tokenizer.model"), "sp");
  const std::string card = read_file(saved.path / "README.md");
  EXPECT_TRUE(card.starts_with("---\nlibrary_name: cyfa\n")) << card;
  for (const char* words : {"my_data", "00ff", "96 tokens", "cyfa generate", "training loss"}) {
    EXPECT_NE(card.find(words), std::string::npos) << words << '\n' << card;
  }

  // Bytes need no file; the config says so.
  facts.tokenizer.clear();
  facts.bytes = true;
  RunFolder bytes(folder / "bytes", false);
  bytes.start(r, Json::object());
  bytes.describe(facts);
  bytes.save(model, Optimizer(model, r), StepRecord(), r);
  EXPECT_EQ(load_checkpoint(bytes.checkpoints().back().path).config().json["tokenizer"], "bytes");
}

TEST(RunFolder, ACheckpointIsOfTheStepThatBeganItAndCountsWhenItIsFinished) {
  const Folder folder;
  CausalLM model = small_model(small_config(1));
  Recipe r = recipe_of(1);
  RunFolder to(folder / "run", false);
  to.start(r, Json::object());
  Optimizer optimizer(model, r);
  std::vector<at::Tensor> before;
  for (at::Tensor& p : model.parameters()) {
    before.push_back(p.detach().clone());
    p.requires_grad_();
    p.mutable_grad() = at::ones_like(p);
  }
  StepRecord record;
  record.step = 1;
  to.begin_save(model, optimizer, record, r);
  EXPECT_TRUE(to.saving());
  optimizer.step(optimizer.gradients(), 1, 0, at::ones({}, at::kDouble), at::zeros({}, at::kDouble));
  EXPECT_TRUE(to.checkpoints().empty());
  EXPECT_EQ(to.finish_save()->step, 1);
  EXPECT_FALSE(to.saving());
  EXPECT_FALSE(to.finish_save());
  const fs::path saved = to.checkpoints().at(0).path;
  const CausalLM stored = load_checkpoint(saved);
  for (size_t id = 0; id < before.size(); ++id) {
    EXPECT_TRUE(at::equal(stored.parameters()[id], before[id]));
    EXPECT_FALSE(at::equal(model.parameters()[id], before[id]));
  }
  const TensorFile moments(saved / "optimizer.safetensors");
  for (const std::string& name : moments.file().names()) EXPECT_FALSE(moments.mapped(name).any().item<bool>()) << name;
  {  // Given up in the middle: nothing of it stays.
    record.step = 2;
    RunFolder other(folder / "other", false);
    other.start(r, Json::object());
    other.begin_save(model, optimizer, record, r);
  }
  EXPECT_TRUE(fs::is_empty(folder / "other/checkpoints"));
}

// Files of more than some thousand bytes fail, as on a full disk.
class FullDisk {
 public:
  FullDisk() {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small = {4096, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_ = {};
};

TEST(Trainer, WhatGoesWrongInTheBackgroundEndsTheRunAtTheNextStep) {
  const Folder folder;
  CausalLM model = small_model(small_config(1));
  Recipe r = recipe_of(6);
  r.save_every = 1;
  RunFolder to(folder / "run", false);
  to.start(r, Json::object());
  Trainer trainer(
      model, r, [&](int64_t index) { return batch_of(model, index); }, {}, &to);
  std::unique_ptr<FullDisk> full;
  trainer.on_step = [&](const Json& row) {
    if (row["step"] != 3) return;
    while (!to.written()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    full = std::make_unique<FullDisk>();
  };
  EXPECT_THROW(trainer.run(), io::FileError);
  full.reset();
  EXPECT_EQ(trainer.step(), 4);
  EXPECT_EQ(steps_of(to), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "run/checkpoints"), fs::directory_iterator()), 2);
}

TEST(Trainer, CheckpointsInTheBackgroundAreThoseOfATrainingThatWaits) {
  const Folder folder;
  for (const bool background : {true, false}) {
    CausalLM model = small_model(small_config(1));
    Recipe r = recipe_of(5);
    r.save_every = 2;
    r.keep = 10;
    r.save_in_background = background;
    RunFolder to(folder / (background ? "background" : "waits"), false);
    to.start(r, Json::object());
    Trainer trainer(
        model, r, [&](int64_t index) { return batch_of(model, index); }, {}, &to);
    std::vector<std::string> notes;
    trainer.on_note = [&](const std::string& note) { notes.push_back(note); };
    trainer.run();
    EXPECT_EQ(notes, (std::vector<std::string>{"saved step 2", "saved step 4", "saved step 5"}));
  }
  for (const char* step : {"step-00000002", "step-00000004", "step-00000005"}) {
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json"}) {
      const fs::path file = fs::path("checkpoints") / step / name;
      EXPECT_EQ(read_file(folder / "background" / file), read_file(folder / "waits" / file)) << file;
    }
  }
}

TEST(RunFolder, IsHeldByOneTrainerAndWritesNothingBeforeItStarts) {
  const Folder folder;
  const fs::path run = folder / "run";
  {
    RunFolder first(run, false);
    EXPECT_FALSE(fs::exists(run));
    RunFolder second(run, false);
    first.start(recipe_of(1), Json{{"data", "x"}});
    EXPECT_THROW(second.start(recipe_of(1), Json::object()), io::FileError);
    EXPECT_THROW(RunFolder(run, true), io::FileError);
  }
  RunFolder next(run, true);
  EXPECT_EQ(next.manifest()["data"], "x");
  std::ofstream(run / "manifest.json") << "[";
  EXPECT_THROW(next.manifest(), io::FileError);
}

TEST(RunFolder, ClearsWhatAKilledProcessLeft) {
  const Folder folder;
  const fs::path run = folder / "run", part = run / "checkpoints/step-00000007.part-12";
  RunFolder(run, false).start(recipe_of(1), Json::object());
  fs::create_directories(part);
  std::ofstream(part / kStepFile) << R"({"step": 7})";
  std::ofstream(run / ".cyfa-1.tmp") << "x";
  std::ofstream(run / "metrics.jsonl") << "{\"step\":1}\n{\"step\":\"2\"}\n{\"step\":3,\"lo";
  RunFolder again(run, true);
  EXPECT_TRUE(again.checkpoints().empty());
  EXPECT_FALSE(fs::exists(part));
  EXPECT_FALSE(fs::exists(run / ".cyfa-1.tmp"));
  EXPECT_EQ(again.metrics().size(), 1U);
}

TEST(Trainer, SavesByTheClockAndCountsAllSeconds) {
  const Folder folder;
  CausalLM model = small_model(small_config(1));
  Recipe r = recipe_of(4);
  r.save_minutes = 1e-9;
  r.keep = 10;
  RunFolder to(folder / "run", false);
  to.start(r, Json::object());
  Trainer trainer(
      model, r, [&](int64_t index) { return batch_of(model, index); }, {}, &to);
  RunCheckpoint earlier;
  to.save(model, Optimizer(model, r), StepRecord(), r);
  earlier = to.checkpoints().back();
  earlier.seconds = 1000;
  trainer.resume(earlier);
  trainer.run();
  EXPECT_EQ(steps_of(to), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_GT(to.metrics().front()["seconds"].get<double>(), 1000);
  EXPECT_GT(to.checkpoints().back().seconds, 1000);
}

TEST(Recipe, SaysWhatCannotChange) {
  Recipe before = recipe_of(3), after = before;
  EXPECT_TRUE(recipe_changes(before, after).empty());
  after.seed = 7;
  after.rate = 1;
  const auto changes = recipe_changes(before, after);
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0]->fixed, nullptr);
  EXPECT_NE(changes[1]->fixed, nullptr);
  for (const RecipeKey& key : recipe_keys()) {
    const bool fixed = std::set<std::string>{"model", "batch", "context", "reset_documents", "skip_read", "seed"}.contains(key.name);
    EXPECT_EQ(key.fixed != nullptr, fixed) << key.name;
  }
}

TEST(Recipe, RefusesNumbersWhoseProductsOverflow) {
  for (const char* absurd : {"steps=9223372036854775807", "batch=4611686018427387904", "context=9223372036854775807", "keep=0",
                             "save_minutes=-1", "save_minutes=nan", "check_data=some", "warmup=-1"}) {
    Recipe r = recipe_of(3);
    r.set(absurd);
    EXPECT_THROW(r.check(), std::invalid_argument) << absurd;
  }
}

}  // namespace
}  // namespace cyfa::test
