#include "cyfa/train/trainer.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cmath>

#include "cyfa/ops/common/check.h"

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

}  // namespace

Trainer::Trainer(CausalLM& model, const Recipe& recipe, BatchSource train, BatchSource validation, RunFolder* folder)
    : model_(model),
      recipe_(recipe),
      train_(std::move(train)),
      validation_(std::move(validation)),
      folder_(folder),
      optimizer_(model, recipe) {
  recipe.check();
  for (at::Tensor& p : model_.parameters()) p.requires_grad_();
  engine_ = prepare_training(model_, {compute(), recipe_.engine, recipe_.recompute});
}

void Trainer::resume(const RunCheckpoint& checkpoint) {
  continue_from(checkpoint.path);
  step_ = checkpoint.step;
  seconds_before_ = checkpoint.seconds;
  watch_ = TrainingWatch::parse(checkpoint.watch);
}

void Trainer::continue_from(const std::filesystem::path& checkpoint) { optimizer_.load(TensorFile(checkpoint / kOptimizerFile)); }

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

void Trainer::fail(const std::string& what) const {
  std::string message = "step " + std::to_string(step_ + 1) + ": " + what;
  if (watch_.sign()) message += ". The first sign of it was at step " + std::to_string(*watch_.sign()) + ": " + watch_.words();
  throw TrainingError(message + "; " + (folder_ != nullptr ? way_back() : "a smaller rate or a longer warm-up may help"));
}

std::string Trainer::warning() const {
  if (!watch_.sign()) return "";
  return "since step " + std::to_string(*watch_.sign()) + " training is off its course: " + watch_.words() +
         (folder_ != nullptr ? "; " + way_back() : "");
}

void Trainer::watch(double loss, double norm) {
  if (!watch_.add(step_, loss, norm) || !on_note) return;
  on_note("step " + std::to_string(step_) + ": " + watch_.words() + (folder_ != nullptr ? "; " + way_back() : ""));
}

// A micro-batch on the model's device. The copy to a GPU is asynchronous, so that the host stays ahead of the GPU.
TrainBatch Trainer::part_of_step(int64_t part) const {
  TrainBatch batch = train_(step_ * recipe_.accumulate + part);
  if (!model_.device().is_cuda()) return batch;
  for (at::Tensor* ids : {&batch.inputs, &batch.targets}) {
    if (!ids->is_cpu()) continue;
    if (ids == &batch.inputs) model_.check_ids(*ids);
    *ids = ids->contiguous().pin_memory().to(model_.device(), ids->scalar_type(), true);
  }
  return batch;
}

double Trainer::rate() const { return rate_of_step ? rate_of_step(step_) : learning_rate(recipe_, step_); }

double Trainer::one_step(double* norm) {
  at::Tensor losses;  // sum over the micro-batches, read back once after the last
  engine_->begin_step(mixed_seed(recipe_.seed, static_cast<uint64_t>(step_)));
  for (int64_t part = 0; part < recipe_.accumulate; ++part) {
    try {
      const TrainBatch batch = part_of_step(part);
      const at::Tensor loss = engine_->loss(batch.inputs, batch.targets, batch.cu_seqlens) / static_cast<double>(recipe_.accumulate);
      loss.backward();
      const at::Tensor number = loss.detach().to(at::kDouble);
      losses = losses.defined() ? losses + number : number;
    } catch (const ops::ArgumentError& e) {  // a gate is NaN: training has diverged
      fail(e.what());
    }
  }
  // Enqueue the optimizer step before waiting for loss and norm, so that the GPU is not idle meanwhile.
  const at::Tensor norms = optimizer_.gradient_norm();
  HostCopy figures(at::stack({losses, norms}));
  optimizer_.step(rate(), recipe_.clip, norms, losses);
  const at::Tensor numbers = figures.wait();
  const auto sum = numbers[0].item<double>();
  *norm = numbers[1].item<double>();
  if (!std::isfinite(sum) || !std::isfinite(*norm)) {
    fail("the loss is " + std::to_string(sum) + " and the gradient's norm " + std::to_string(*norm));
  }
  return sum;
}

double Trainer::evaluate() const {
  const at::NoGradGuard no_grad;
  const Weights w = model_.weights(compute());
  double sum = 0;
  for (int64_t i = 0; i < recipe_.eval_batches; ++i) {
    const TrainBatch batch = validation_(i);
    sum += model_.loss(w, batch.inputs, batch.targets, batch.cu_seqlens).item<double>();
  }
  return sum / static_cast<double>(recipe_.eval_batches);
}

void Trainer::save(double loss, std::optional<double> eval_loss, double seconds) {
  if (folder_ == nullptr) return;
  StepRecord record;
  record.step = step_;
  record.tokens = step_ * recipe_.batch * recipe_.context;
  record.seconds = seconds;
  record.loss = loss;
  record.eval_loss = eval_loss;
  record.watch = watch_.json();
  folder_->save(model_, optimizer_, std::move(record), recipe_, watch_.sign());
  try {
    folder_->draw_losses();
  } catch (const std::exception& e) {  // a picture that fails, for want of a font perhaps, ends no run
    if (on_note) on_note(std::string("the loss is not drawn: ") + e.what());
  }
  if (on_note) on_note("saved step " + std::to_string(step_));
}

int64_t Trainer::run() {
  const int64_t tokens = recipe_.batch * recipe_.context;
  const Clock::time_point start = Clock::now();
  const int64_t first = step_;
  Clock::time_point since = start, saved = start;
  int64_t since_step = step_;
  while (step_ < recipe_.steps) {
    double norm = 0;
    const double rate_of_this = rate();
    const double loss = one_step(&norm);
    ++step_;
    watch(loss, norm);
    const bool last = step_ == recipe_.steps;
    const bool stop = should_stop && should_stop();
    const bool logs = step_ % recipe_.log_every == 0 || last || stop;
    const bool evals = validation_ && (last || (recipe_.eval_every > 0 && step_ % recipe_.eval_every == 0));
    const bool health = recipe_.health_every > 0 ? step_ % recipe_.health_every == 0 : evals;
    Json row = {{"step", step_}, {"loss", loss}, {"grad_norm", norm}, {"rate", rate_of_this}, {"tokens", step_ * tokens}};
    const double passed = seconds_since(start);
    row["tokens_per_s"] = static_cast<double>(tokens * (step_ - since_step)) / std::max(seconds_since(since), 1e-9);
    row["seconds"] = seconds_before_ + passed;
    row["seconds_left"] = passed / static_cast<double>(step_ - first) * static_cast<double>(recipe_.steps - step_);
    std::optional<double> eval_loss;
    if (evals) {
      eval_loss = evaluate();
      row["eval_loss"] = *eval_loss;
      if (extra_metric) row["score"] = extra_metric(model_);
    }
    if (health) {
      Json figures = Json::object();
      const at::NoGradGuard no_grad;
      for (const Figure& f : model_.health(model_.weights(compute()), train_(0).inputs.narrow(0, 0, 1))) figures[f.name] = f.value;
      row["memory"] = figures;
    }
    if (on_step) on_step(row);
    if (logs || evals || health) {
      if (folder_ != nullptr) folder_->add_metrics(row);
      since = Clock::now();
      since_step = step_;
    }
    const bool time_to_save = recipe_.save_minutes > 0 && seconds_since(saved) >= 60 * recipe_.save_minutes;
    if (((last || stop) && save_at_end) || time_to_save || (recipe_.save_every > 0 && step_ % recipe_.save_every == 0)) {
      save(loss, eval_loss, seconds_before_ + seconds_since(start));
      saved = Clock::now();
    }
    if (stop) break;
  }
  if (on_note && step_ > first && watch_.sign()) on_note(warning());
  return step_;
}

}  // namespace cyfa
