#include "cyfa/train/trainer.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/cross_entropy.h"

namespace cyfa {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// An asynchronous copy from a device to the host. wait() waits only for the copy and for work enqueued before it.
class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& from) : to_(from.to(at::kCPU, from.scalar_type(), /*non_blocking=*/true)) {
    if (!from.is_cuda()) return;
    done_.emplace(from.device().type());
    done_->record(c10::impl::VirtualGuardImpl(from.device().type()).getStream(from.device()));
  }
  const at::Tensor& wait() const {
    if (done_) done_->synchronize();
    return to_;
  }

 private:
  at::Tensor to_;
  std::optional<c10::Event> done_;
};

// Measures a stretch of work: on a GPU the device's time, whose figure is there once the device has done it; else the host's.
class Stretch {
 public:
  explicit Stretch(at::Device device) : device_(device), start_(Clock::now()) { record(begin_); }
  void end() {
    record(end_);
    host_ = seconds_since(start_);
  }
  double seconds() const { return device_.is_cuda() ? begin_->elapsedTime(*end_) * 1e-3 : host_; }  // after the device has finished

 private:
  void record(std::optional<c10::Event>& event) {
    if (!device_.is_cuda()) return;
    event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  at::Device device_;
  Clock::time_point start_;
  std::optional<c10::Event> begin_, end_;
  double host_ = 0;
};

int64_t counted_targets(const TrainBatch& batch) { return batch.targets.ne(ops::kIgnore).sum().item<int64_t>(); }

// Rounds the parameters that a sharded optimizer keeps exact to the type in which the model computes with them. Returns all exact values.
std::vector<at::Tensor> round_parameters(CausalLM& model, const Recipe& recipe, const Group& group) {
  std::vector<at::Tensor> exact = model.parameters();
  if (group.alone() || recipe.shard != "optimizer" || compute_type(recipe) != at::kBFloat16) return exact;
  for (ParameterId id = 0; id < exact.size(); ++id) {
    if (model.table().specs()[id].role == Role::kMatrix) model.parameters()[id] = exact[id].detach().to(at::kBFloat16);
  }
  return exact;
}

}  // namespace

Trainer::Trainer(CausalLM& model, const Recipe& recipe, BatchSource train, BatchSource validation, RunFolder* folder, const Group& group,
                 const Group& context)
    : Trainer(model, recipe, std::move(train), std::move(validation), folder, group, context, round_parameters(model, recipe, group)) {}

Trainer::Trainer(CausalLM& model, const Recipe& recipe, BatchSource train, BatchSource validation, RunFolder* folder, const Group& group,
                 const Group& context, std::vector<at::Tensor> exact)
    : model_(model),
      recipe_(recipe),
      train_(std::move(train)),
      validation_(std::move(validation)),
      folder_(folder),
      group_(group),
      context_(context),
      exchange_(model, group, recipe.shard == "optimizer", recipe.reduce == "bf16" ? at::kBFloat16 : at::kFloat,
                static_cast<int64_t>(recipe.bucket_mb * (1 << 20))),
      optimizer_(model, recipe, exchange_.ranges(), exact) {
  exact.clear();  // only the masters are needed from here on, and the engine needs memory
  recipe.check();
  for (at::Tensor& p : model_.parameters()) p.requires_grad_();
  if (!context_.alone()) check_context();
  engine_ = prepare_training(
      model_, {engine_compute_type(recipe_), recipe_.engine, recipe_.recompute, recipe_.recompute_rows, recipe_.recompute_mlp});
  if (group_.alone()) return;
  engine_->complete_early([this](ParameterId id) { exchange_.completed(id); });
  if (recipe_.shard == "optimizer") reads_late_ = engine_->read_late([this](ParameterId id) { exchange_.receive_parameter(id); });
}

// Runs the model on two tokens as if they were cut: whatever has no exchange refuses here, and not in the first step.
void Trainer::check_context() const {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::zeros({1, 2}, at::TensorOptions(at::kLong).device(model_.device()));
  const CutBatch batch = cut_batch({}, ids, ids, std::nullopt);
  try {
    model_.loss(model_.weights(compute_type(recipe_)).with_cut(batch.cut), batch.inputs, batch.targets, batch.cu_seqlens);
  } catch (const ops::ArgumentError& e) {
    throw std::invalid_argument("recipe: context_ranks is " + std::to_string(context_.size()) + ", but " + e.what());
  }
}

Traffic Trainer::traffic() const {
  Traffic all = group_.traffic();
  const Traffic context = context_.traffic();
  all.bytes += context.bytes;
  all.seconds += context.seconds;
  return all;
}

TrainBatch Trainer::own_stretch(TrainBatch batch) const {
  if (context_.alone()) return batch;
  CutBatch cut = cut_batch(context_, batch.inputs, batch.targets, batch.cu_seqlens);
  return {cut.inputs, cut.targets, cut.cu_seqlens, std::move(cut.cut)};
}

std::optional<at::ScalarType> compute_type(const Recipe& recipe) {
  return recipe.dtype == "fp32" ? std::nullopt : std::optional(at::kBFloat16);
}

std::optional<at::ScalarType> engine_compute_type(const Recipe& recipe) {
  return recipe.dtype == "fp8" ? at::kFloat8_e4m3fn : compute_type(recipe);
}

void Trainer::resume(const RunCheckpoint& checkpoint) {
  continue_from(checkpoint.path);
  step_ = checkpoint.step;
  seconds_before_ = checkpoint.seconds;
  watch_ = TrainingWatch::parse(checkpoint.watch);
}

void Trainer::continue_from(const std::filesystem::path& checkpoint) { optimizer_.load(checkpoint); }

std::string Trainer::way_back() const {
  if (folder_ == nullptr) return "";
  std::optional<RunCheckpoint> good;
  for (const RunCheckpoint& c : folder_->checkpoints()) {
    if (!watch_.sign() || c.step < *watch_.sign()) good = c;
  }
  if (!good) return "there is no checkpoint from before; begin again in another folder with a smaller rate or a longer warm-up";
  return "the last checkpoint from before is " + good->path.string() + "; to go back there with a smaller rate: cyfa train " +
         folder_->path().string() + " --resume --from " + std::to_string(good->step) + " rate=...";
}

void Trainer::fail(const std::string& what, bool together) {
  std::string message = "step " + std::to_string(step_ + 1) + ": " + what;
  if (together) {
    try {
      finish_save();
    } catch (const std::exception& e) {
      message += "; a checkpoint could not be written: " + std::string(e.what());
    }
  }
  if (watch_.sign()) message += ". The first sign of it was at step " + std::to_string(*watch_.sign()) + ": " + watch_.words();
  throw TrainingError(message + "; " + (folder_ != nullptr ? way_back() : "a smaller rate or a longer warm-up may help"));
}

std::string Trainer::warning() const {
  if (!watch_.sign()) return "";
  return "since step " + std::to_string(*watch_.sign()) + " training is off its course: " + watch_.words() +
         (folder_ != nullptr ? "; " + way_back() : "");
}

void Trainer::watch(double loss, double norm) {
  if (!watch_.add(step_, loss, norm)) return;
  finish_save();  // it may be the last checkpoint from before
  if (!on_note) return;
  on_note("step " + std::to_string(step_) + ": " + watch_.words() + (folder_ != nullptr ? "; " + way_back() : ""));
}

// A micro-batch on the model's device. The copy to a GPU is asynchronous, so that the host stays ahead of the GPU.
TrainBatch Trainer::on_device(TrainBatch batch) const {
  if (!model_.device().is_cuda()) return batch;
  for (at::Tensor* ids : {&batch.inputs, &batch.targets}) {
    if (!ids->is_cpu()) continue;
    if (ids == &batch.inputs) model_.check_ids(*ids);
    *ids = ids->contiguous().pin_memory().to(model_.device(), ids->scalar_type(), true);
  }
  return batch;
}

// By what the mean loss of each part is divided. The losses of all ranks' parts then add up to the mean over the micro-batches, each of
// which is the mean over its targets, on whatever rank they are.
std::vector<double> Trainer::divisors(const std::vector<TrainBatch>& parts) const {
  std::vector<double> all(parts.size(), static_cast<double>(recipe_.accumulate));
  if (group_.alone()) return all;
  std::vector<int64_t> own;
  for (const TrainBatch& batch : parts) own.push_back(counted_targets(batch));
  const at::Tensor sums = at::tensor(own, at::kLong);
  group_.all_reduce(sums).wait();
  for (size_t i = 0; i < all.size(); ++i) {
    const auto targets = std::max<int64_t>(sums[static_cast<int64_t>(i)].item<int64_t>(), 1);
    all[i] *= static_cast<double>(targets) / static_cast<double>(std::max<int64_t>(own[i], 1));
  }
  return all;
}

double Trainer::rate() const { return rate_of_step ? rate_of_step(step_) : learning_rate(recipe_, step_); }

double Trainer::one_step(double* norm) {
  at::Tensor losses;    // sum over the micro-batches, read back once after the last
  std::string trouble;  // why this rank could not compute its losses
  std::vector<TrainBatch> parts;
  for (int64_t part = 0; part < recipe_.accumulate; ++part) parts.push_back(own_stretch(train_(step_ * recipe_.accumulate + part)));
  const std::vector<double> divisor = divisors(parts);
  exchange_.begin_step();
  if (!reads_late_) exchange_.receive_parameters();
  Stretch computing(group_.alone() ? at::Device(at::kCPU) : model_.device());
  const uint64_t noise = mixed_seed(recipe_.seed, static_cast<uint64_t>(step_));
  engine_->begin_step(group_.leads() ? noise : mixed_seed(noise, static_cast<uint64_t>(group_.rank())));
  for (size_t part = 0; part < parts.size(); ++part) {
    try {
      const TrainBatch batch = on_device(std::move(parts[part]));
      if (part + 1 == parts.size()) exchange_.begin();
      engine_->cut(batch.cut);
      const at::Tensor loss = engine_->loss(batch.inputs, batch.targets, batch.cu_seqlens) / divisor[part];
      loss.backward();
      const at::Tensor number = loss.detach().to(at::kDouble);
      losses = losses.defined() ? losses + number : number;
    } catch (const ops::ArgumentError& e) {  // a gate is NaN: training has diverged
      // The other ranks wait for this one's gradients: give them a loss that all of them refuse. If they wait in the middle of a sequence
      // that is cut, they cannot be helped: this rank ends, and they name it.
      if (group_.alone() || !context_.alone()) fail(e.what(), group_.alone());
      trouble = e.what();
      losses = at::full({}, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions(model_.device()).dtype(at::kDouble));
      break;
    }
  }
  computing.end();
  exchange_.finish();
  const std::vector<at::Tensor> gradients = exchange_.gradients();
  // Enqueue the optimizer step before waiting for loss and norm, so that the GPU is not idle meanwhile.
  at::Tensor both = at::stack({losses, optimizer_.gradient_norm(gradients)});
  if (!group_.alone()) {
    at::Tensor square = both[1].square_();
    if (recipe_.shard == "none") square.div_(group_.size());  // of all gradients, not of a part: the mean makes it the same bits everywhere
    group_.all_reduce(both).wait();
    square.sqrt_();
  }
  HostCopy figures(both);
  optimizer_.step(gradients, rate(), recipe_.clip, both[1], both[0]);
  exchange_.send_parameters();
  const at::Tensor numbers = figures.wait();
  const auto sum = numbers[0].item<double>();
  *norm = numbers[1].item<double>();
  computing_ += computing.seconds();
  if (!std::isfinite(sum) || !std::isfinite(*norm)) {
    if (trouble.empty() && !std::isfinite(losses.item<double>())) trouble = "the loss is " + std::to_string(losses.item<double>());
    std::string where;
    if (!group_.alone()) {
      const std::vector<std::string> all = group_.all_gather_text(trouble);
      for (size_t rank = 0; rank < all.size(); ++rank) {
        if (!all[rank].empty()) where += "; rank " + std::to_string(rank) + ": " + all[rank];
      }
    }
    fail("the loss is " + std::to_string(sum) + " and the gradient's norm " + std::to_string(*norm) + where);
  }
  return sum;
}

Trainer::AfterStep Trainer::agree(bool stop, bool save) const {
  const bool written = folder_ != nullptr && folder_->saving() && folder_->written();
  AfterStep after = {stop, save, written, 0, computing_, computing_};
  if (group_.alone()) return after;
  constexpr int64_t kFigures = 4;
  const at::Tensor all = at::empty({group_.size() * kFigures}, at::kDouble);
  group_.all_gather(all, at::tensor({stop ? 1.0 : 0.0, save ? 1.0 : 0.0, written ? 1.0 : 0.0, computing_}, at::kDouble)).wait();
  const at::Tensor rows = all.view({group_.size(), kFigures}), seconds = rows.select(1, 3);
  after.stop = rows.select(1, 0).max().item<double>() > 0;
  after.save = rows[0][1].item<double>() > 0;
  after.saved = rows.select(1, 2).min().item<double>() > 0;
  after.slowest = seconds.argmax().item<int64_t>();
  after.longest = seconds.max().item<double>();
  after.mean = seconds.mean().item<double>();
  return after;
}

double Trainer::evaluate() const {
  const at::NoGradGuard no_grad;
  const Weights w = model_.weights(compute_type(recipe_));
  std::vector<double> sums;
  std::vector<double> targets;
  for (int64_t i = 0; i < recipe_.eval_batches; ++i) {
    const TrainBatch batch = own_stretch(validation_(i));
    targets.push_back(group_.alone() ? 1.0 : static_cast<double>(counted_targets(batch)));
    const Weights own = batch.cut ? w.with_cut(batch.cut) : w;
    sums.push_back(targets.back() * model_.loss(own, batch.inputs, batch.targets, batch.cu_seqlens).item<double>());
  }
  const at::Tensor all = at::stack({at::tensor(sums, at::kDouble), at::tensor(targets, at::kDouble)});
  group_.all_reduce(all).wait();
  return (all[0] / all[1].clamp_min(1)).mean().item<double>();
}

CausalLM Trainer::exact_model() {
  CausalLM exact = model_;
  exact.parameters() = exchange_.gather(optimizer_.values());
  return exact;
}

void Trainer::begin_save(double loss, std::optional<double> eval_loss, double seconds) {
  if (folder_ == nullptr) return;
  finish_save();
  exchange_.receive_parameters();
  if (!group_.alone()) {
    const uint64_t hash = model_.device().is_cpu() ? fingerprint(model_) : hash_of_sums(model_.parameters());
    check_agreement(group_, {{"the hash of the parameters after step " + std::to_string(step_), std::to_string(hash)}});
  }
  StepRecord record;
  record.step = step_;
  record.tokens = step_ * recipe_.batch * recipe_.context;
  record.seconds = seconds;
  record.loss = loss;
  record.eval_loss = eval_loss;
  record.watch = watch_.json();
  folder_->begin_save(exact_model(), optimizer_, std::move(record), recipe_);
  if (!recipe_.save_in_background) finish_save();
}

void Trainer::finish_save() {
  if (folder_ == nullptr) return;
  const std::optional<RunFolder::Saved> saved = folder_->finish_save(watch_.sign());
  if (!saved || !on_note) return;
  if (!saved->not_drawn.empty()) on_note("the loss is not drawn: " + saved->not_drawn);
  on_note("saved step " + std::to_string(saved->step));
}

int64_t Trainer::run() {
  try {
    return run_steps();
  } catch (const GroupError& e) {
    if (folder_ != nullptr) folder_->abandon_save();
    std::string message = "after step " + std::to_string(step_) + ": " + e.what();
    try {
      const std::vector<RunCheckpoint> all = folder_ == nullptr ? std::vector<RunCheckpoint>() : folder_->checkpoints();
      message += all.empty() ? "; there is no checkpoint yet" : "; the last checkpoint is " + all.back().path.string();
    } catch (const io::FileError&) {
      // The first rank is just removing an old one.
    }
    throw GroupError(message);
  } catch (...) {
    // What was to be saved is whole; but other ranks that still wait for this one must hear of its error soon.
    if (!group_.alone() && folder_ != nullptr) folder_->abandon_save();
    try {
      finish_save();
    } catch (const std::exception&) {
      // The first error says more.
    }
    throw;
  }
}

int64_t Trainer::run_steps() {
  const int64_t tokens = recipe_.batch * recipe_.context;
  const Clock::time_point start = Clock::now();
  const int64_t first = step_;
  Clock::time_point since = start, saved = start;
  int64_t since_step = step_;
  Traffic since_traffic = traffic();
  while (step_ < recipe_.steps) {
    double norm = 0;
    const double rate_of_this = rate();
    const double loss = one_step(&norm);
    ++step_;
    watch(loss, norm);
    const bool last = step_ == recipe_.steps;
    const bool time_to_save = recipe_.save_minutes > 0 && seconds_since(saved) >= 60 * recipe_.save_minutes;
    const AfterStep after = agree(should_stop && should_stop(), time_to_save);
    if (after.saved) finish_save();
    const bool logs = step_ % recipe_.log_every == 0 || last || after.stop;
    const bool evals = validation_ && (last || (recipe_.eval_every > 0 && step_ % recipe_.eval_every == 0));
    const bool health = recipe_.health_every > 0 ? step_ % recipe_.health_every == 0 : evals;
    Json row = {{"step", step_}, {"loss", loss}, {"grad_norm", norm}, {"rate", rate_of_this}, {"tokens", step_ * tokens}};
    const double passed = seconds_since(start);
    const auto steps = static_cast<double>(step_ - since_step);
    row["tokens_per_s"] = static_cast<double>(tokens) * steps / std::max(seconds_since(since), 1e-9);
    if (peak > 0) {
      const double flops = row["tokens_per_s"].get<double>() * 3 * model_.forward_flops_per_token();
      peak = std::max(peak, flops);
      row["mfu"] = flops / peak;
    }
    row["seconds"] = seconds_before_ + passed;
    row["seconds_left"] = passed / static_cast<double>(step_ - first) * static_cast<double>(recipe_.steps - step_);
    if (!group_.alone()) {
      const Traffic now = traffic();
      row["ranks"] = {{"count", group_.size()},
                      {"bytes_sent_per_step", (now.bytes - since_traffic.bytes) / steps},
                      {"seconds_waiting_per_step", (now.seconds - since_traffic.seconds) / steps},
                      {"seconds_computing_per_step", after.mean / steps},
                      {"slowest", after.slowest},
                      {"slowest_seconds_per_step", after.longest / steps}};
    }
    std::optional<double> eval_loss;
    if (evals || health) exchange_.receive_parameters();
    if (evals) {
      eval_loss = evaluate();
      row["eval_loss"] = *eval_loss;
      if (extra_metric) row["score"] = extra_metric(model_);
    }
    if (health && group_.leads()) {
      Json figures = Json::object();
      const at::NoGradGuard no_grad;
      const Weights w = model_.weights(compute_type(recipe_));
      for (const Figure& f : model_.health(w, train_(0).inputs.narrow(0, 0, 1))) figures[f.name] = f.value;
      row["memory"] = figures;
    }
    if (on_step) on_step(row);
    if (logs || evals || health) {
      if (folder_ != nullptr) folder_->add_metrics(row);
      since = Clock::now();
      since_step = step_;
      since_traffic = traffic();
      computing_ = 0;
    }
    if (((last || after.stop) && save_at_end) || after.save || (recipe_.save_every > 0 && step_ % recipe_.save_every == 0)) {
      begin_save(loss, eval_loss, seconds_before_ + seconds_since(start));
      saved = Clock::now();
    }
    if (after.stop) break;
  }
  exchange_.receive_parameters();  // the caller reads the model
  finish_save();
  if (on_note && step_ > first && watch_.sign()) on_note(warning());
  return step_;
}

}  // namespace cyfa
