#include "apps/train_screen.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

#include "apps/parse.h"
#include "apps/timing.h"
#include "cyfa/train/trainer.h"

namespace cyfa::app {
namespace {

// The speed of large matrix products in the type that training multiplies in. The size doubles until one product takes a while, so that
// neither its start nor idle cores count; the fastest of several counts, since other processes only slow it down.
double measured_peak(const Recipe& recipe) {
  constexpr int64_t kFirst = 512, kMost = 8192;
  constexpr double kLongEnough = 0.02;  // seconds
  constexpr int kRepeats = 4;
  const at::Device device = parse_device(recipe.device);
  const auto options = at::TensorOptions(device).dtype(compute_type(recipe).value_or(at::kFloat));
  double best = 0;
  for (int64_t n = kFirst; n <= kMost; n *= 2) {
    const at::Tensor a = at::full({n, n}, 0.5, options), b = at::full({n, n}, 0.25, options);
    double fastest = INFINITY;
    for (int i = 0; i < kRepeats; ++i) {
      synchronize(device);
      const auto start = std::chrono::steady_clock::now();
      at::mm(a, b);
      synchronize(device);
      fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    best = std::max(best, 2.0 * std::pow(static_cast<double>(n), 3) / fastest);
    if (fastest >= kLongEnough) break;
  }
  return best;
}

}  // namespace

std::string figure(double value, int decimals) { return std::abs(value) < 1e6 ? text("%.*f", decimals, value) : text("%.3g", value); }

std::string duration(double seconds) {
  constexpr double kTenYears = 3652.5 * 86400;
  if (!(seconds < kTenYears)) return "over 10 years";
  const auto s = static_cast<long long>(std::max(seconds, 0.0));
  if (s >= 86400) return text("%lldd%02lldh", s / 86400, s / 3600 % 24);
  if (s >= 3600) return text("%lldh%02lldm", s / 3600, s / 60 % 60);
  return text("%lldm%02llds", s / 60, s % 60);
}

TrainScreen::TrainScreen(const Recipe& recipe, double flops, int ranks, bool quiet)
    : recipe_(recipe), flops_(flops), terminal_(isatty(STDOUT_FILENO) == 1), quiet_(quiet) {
  if (!quiet) peak_ = measured_peak(recipe) * ranks;
}

void TrainScreen::step(const Json& row) {
  if (quiet_) return;
  const auto number = [&](const char* key) { return row.at(key).get<double>(); };
  const bool logged = row.at("step").get<int64_t>() % recipe_.log_every == 0 || row.contains("eval_loss");
  if (!terminal_ && !logged) return;
  const double rate = number("tokens_per_s");
  peak_ = std::max(peak_, rate * flops_);
  std::string line = text("step %6lld/%lld  loss %s  norm %s  rate %.2e  %s tokens/s  MFU %.0f%%  %s left",
                          static_cast<long long>(row.at("step").get<int64_t>()), static_cast<long long>(recipe_.steps),
                          figure(number("loss"), 4).c_str(), figure(number("grad_norm"), 3).c_str(), number("rate"),
                          figure(rate, 0).c_str(), 100 * rate * flops_ / peak_, duration(number("seconds_left")).c_str());
  if (row.contains("ranks")) {
    const auto of_ranks = [&](const char* key) { return row.at("ranks").at(key).get<double>(); };
    const double step_seconds = static_cast<double>(recipe_.batch * recipe_.context) / rate;
    const double mean = std::max(of_ranks("seconds_computing_per_step"), 1e-9);
    line += text("  waiting %.0f%%  slowest rank %.0f (%+.0f%%)", 100 * of_ranks("seconds_waiting_per_step") / step_seconds,
                 of_ranks("slowest"), 100 * (of_ranks("slowest_seconds_per_step") / mean - 1));
  }
  if (row.contains("eval_loss")) line += "  validation " + figure(number("eval_loss"), 4);
  std::cout << (terminal_ ? "\r\033[K" : "") << line << (terminal_ && !logged ? "" : "\n") << std::flush;
}

void TrainScreen::note(const std::string& note) const {
  if (!quiet_) std::cout << (terminal_ ? "\r\033[K" : "") << note << '\n' << std::flush;
}

}  // namespace cyfa::app
