// See metrics.h.
#include "cyfa/eval/metrics.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <thread>

namespace cyfa::eval {
namespace {

constexpr int kBlocks = 100, kResamples = 1000;

// random.Random(seed).choices of Python: MT19937 seeded with an array of one word, 53-bit uniforms.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed) {
    // init_by_array of the authors of MT19937, with a key of one word.
    state_[0] = 19650218u;
    for (uint32_t i = 1; i < kWords; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
    uint32_t i = 1;
    const auto next_place = [&] {
      if (++i == kWords) {
        state_[0] = state_[kWords - 1];
        i = 1;
      }
    };
    for (uint32_t k = 0; k < kWords; ++k) {
      state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525u)) + seed;
      next_place();
    }
    for (uint32_t k = 1; k < kWords; ++k) {
      state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941u)) - i;
      next_place();
    }
    state_[0] = 0x80000000u;
  }

  double uniform() {
    const uint32_t high = next() >> 5, low = next() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }

 private:
  static constexpr uint32_t kWords = 624, kShift = 397;

  uint32_t next() {
    if (at_ == kWords) {
      for (uint32_t k = 0; k < kWords; ++k) {
        const uint32_t y = (state_[k] & 0x80000000u) | (state_[(k + 1) % kWords] & 0x7FFFFFFFu);
        state_[k] = state_[(k + kShift) % kWords] ^ (y >> 1) ^ ((y & 1u) != 0 ? 0x9908B0DFu : 0u);
      }
      at_ = 0;
    }
    uint32_t y = state_[at_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    return y ^ (y >> 18);
  }

  uint32_t state_[kWords] = {};
  uint32_t at_ = kWords;
};

double total(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum;
}

double sample_deviation(std::span<const double> values) {
  const double middle = mean(values);
  double sum = 0;
  for (const double x : values) sum += (x - middle) * (x - middle);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double perplexity(std::span<const double> log_likelihoods) { return std::exp(-mean(log_likelihoods)); }

double bootstrap_error(std::span<const double> values) {
  std::vector<double> found(static_cast<size_t>(kBlocks) * kResamples);
  const auto n = static_cast<double>(values.size());
  const auto block = [&](int i) {
    PythonRandom random(static_cast<uint32_t>(i));
    for (int r = 0; r < kResamples; ++r) {
      double sum = 0;
      for (size_t k = 0; k < values.size(); ++k) sum += values[static_cast<size_t>(random.uniform() * n)];
      found[static_cast<size_t>(i) * kResamples + static_cast<size_t>(r)] = std::exp(-sum / n);
    }
  };
  const int threads = std::max(1, std::min(kBlocks, static_cast<int>(std::thread::hardware_concurrency())));
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      for (int i = t; i < kBlocks; i += threads) block(i);
    });
  }
  for (std::thread& thread : running) thread.join();
  return sample_deviation(found);
}

}  // namespace

Scores::Scores(std::vector<std::string> columns, std::vector<std::vector<double>> rows)
    : columns_(std::move(columns)), rows_(std::move(rows)) {
  for (const std::vector<double>& row : rows_) {
    if (row.size() != columns_.size()) throw std::logic_error("scores: a row has " + std::to_string(row.size()) + " numbers");
  }
}

std::vector<double> Scores::column(const std::string& name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found == columns_.end()) throw std::logic_error("scores: there is no column " + name);
  const auto index = static_cast<size_t>(found - columns_.begin());
  std::vector<double> values;
  values.reserve(rows_.size());
  for (const std::vector<double>& row : rows_) values.push_back(row[index]);
  return values;
}

double mean(std::span<const double> values) { return total(values) / static_cast<double>(values.size()); }

std::optional<double> mean_error(std::span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  return sample_deviation(values) / std::sqrt(static_cast<double>(values.size()));
}

Metric mean_metric(const Scores& scores, const std::string& column, double scale) {
  const std::vector<double> values = scores.column(column);
  std::optional<double> error = mean_error(values);
  if (error) *error *= scale;
  return {column, mean(values) * scale, error};
}

Metric perplexity_metric(const std::string& name, std::span<const double> log_likelihoods) {
  Metric metric{name, perplexity(log_likelihoods), std::nullopt, false};
  if (log_likelihoods.size() > 1) metric.error = bootstrap_error(log_likelihoods);
  return metric;
}

Metric weighted_perplexity(const std::string& name, std::span<const double> log_likelihoods, std::span<const double> weights) {
  return {name, std::exp(-total(log_likelihoods) / total(weights)), std::nullopt, false};
}

Metric bits_per_unit(const std::string& name, std::span<const double> log_likelihoods, std::span<const double> weights) {
  return {name, -total(log_likelihoods) / total(weights) / std::log(2.0), std::nullopt, false};
}

}  // namespace cyfa::eval
