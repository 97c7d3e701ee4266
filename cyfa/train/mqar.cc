#include "cyfa/train/mqar.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>

#include "cyfa/ops/dense/cross_entropy.h"

namespace cyfa {
namespace {

[[noreturn]] void refuse(const std::string& name, double value, const std::string& wanted) {
  const std::string number = value == std::floor(value) ? std::to_string(static_cast<int64_t>(value)) : std::to_string(value);
  throw std::invalid_argument("mqar: " + name + " is " + number + ", wanted " + wanted);
}

// Random numbers that are the same on every machine; the distributions of the standard library are not.
class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  double unit() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }  // [0, 1)
  int64_t below(int64_t n) { return static_cast<int64_t>(bits_() % static_cast<uint64_t>(n)); }

 private:
  std::mt19937_64 bits_;
};

// The first `count` of a shuffled first, first + 1, ... Only they are drawn; `list` is put back in order afterwards.
void draw_distinct(Random& random, std::vector<int64_t>& list, int64_t first, std::span<int64_t> out) {
  std::vector<size_t> moved;
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t j = i + static_cast<size_t>(random.below(static_cast<int64_t>(list.size() - i)));
    std::swap(list[i], list[j]);
    moved.push_back(j);
    out[i] = first + list[i];
  }
  for (size_t i = out.size(); i-- > 0;) std::swap(list[i], list[moved[i]]);
}

// Distinct indices, one after another, each with a probability proportional to its weight among those that are left.
void draw_weighted(Random& random, std::vector<double> weights, std::span<int64_t> out) {
  for (int64_t& index : out) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    double left = random.unit() * sum;
    size_t found = weights.size();
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0) continue;
      found = i;  // the last one with a weight, if rounding leaves something
      if ((left -= weights[i]) < 0) break;
    }
    index = static_cast<int64_t>(found);
    weights[found] = 0;
  }
}

}  // namespace

void MqarTask::check(const MqarSegment& s) const {
  if (vocab_size < 4 || vocab_size > (int64_t{1} << 30)) refuse("vocab_size", static_cast<double>(vocab_size), "4 to 2^30");
  if (!std::isfinite(power)) refuse("power", power, "a finite number");
  if (s.examples < 1) refuse("examples", static_cast<double>(s.examples), "at least 1");
  if (s.pairs < 1) refuse("pairs", static_cast<double>(s.pairs), "at least 1");
  if (s.length < 4 || s.length % 2 != 0 || s.length > (int64_t{1} << 24)) refuse("length", static_cast<double>(s.length), "an even number");
  if (s.length >= vocab_size) refuse("length", static_cast<double>(s.length), "less than vocab_size, " + std::to_string(vocab_size));
  if (4 * s.pairs > s.length) refuse("length", static_cast<double>(s.length), "at least 4 times the " + std::to_string(s.pairs) + " pairs");
  if (s.pairs > vocab_size / 2 - 1) refuse("pairs", static_cast<double>(s.pairs), "at most as many as there are keys");
}

MqarExamples mqar_examples(const MqarTask& task, const MqarSegment& s, uint64_t seed) {
  task.check(s);
  Random random(seed);
  const int64_t half = task.vocab_size / 2, first_query = 2 * s.pairs, spaces = (s.length - first_query) / 2;
  std::vector<int64_t> keys(static_cast<size_t>(half - 1)), values(static_cast<size_t>(task.vocab_size - half));
  std::iota(keys.begin(), keys.end(), 0);
  std::iota(values.begin(), values.end(), 0);
  std::vector<double> weights(static_cast<size_t>(spaces));
  for (size_t g = 0; g < weights.size(); ++g) weights[g] = std::pow(static_cast<double>(g + 1), task.power - 1);

  MqarExamples out{at::zeros({s.examples, s.length}, at::kInt), at::full({s.examples, s.length}, ops::kIgnore, at::kInt)};
  auto* input = out.inputs.mutable_data_ptr<int32_t>();
  auto* target = out.targets.mutable_data_ptr<int32_t>();
  const auto K = static_cast<size_t>(s.pairs);
  std::vector<int64_t> key(K), value(K), gap(K);
  for (int64_t e = 0; e < s.examples; ++e, input += s.length, target += s.length) {
    draw_distinct(random, keys, 1, key);
    draw_distinct(random, values, half, value);
    draw_weighted(random, weights, gap);
    for (size_t i = 0; i < K; ++i) {
      input[2 * i] = static_cast<int32_t>(key[i]);
      input[2 * i + 1] = static_cast<int32_t>(value[i]);
      const int64_t place = first_query + 2 * gap[i];
      input[place] = static_cast<int32_t>(key[i]);
      target[place] = static_cast<int32_t>(value[i]);
    }
    if (!task.random_non_queries) continue;
    for (int64_t t = first_query; t < s.length; ++t) {
      if (input[t] == 0) input[t] = static_cast<int32_t>(random.below(task.vocab_size));
    }
  }
  return out;
}

MqarData::MqarData(const MqarTask& task, std::vector<MqarSegment> segments, int64_t batch, uint64_t seed)
    : task_(task), segments_(std::move(segments)), batch_(batch), seed_(seed), examples_(segments_.size()) {
  if (batch_ < 1) refuse("batch", static_cast<double>(batch_), "at least 1");
  if (segments_.empty()) refuse("the number of segments", 0, "at least 1");
  for (const MqarSegment& s : segments_) {
    task_.check(s);
    batches_ += (s.examples + batch_ - 1) / batch_;
  }
}

int64_t MqarData::tokens() const {
  int64_t sum = 0;
  for (const MqarSegment& s : segments_) sum += s.examples * s.length;
  return sum;
}

const MqarExamples& MqarData::examples(size_t segment) const {
  const std::lock_guard lock(mutex_);
  MqarExamples& made = examples_.at(segment);
  if (!made.inputs.defined()) made = mqar_examples(task_, segments_[segment], mixed_seed(seed_, segment));
  return made;
}

TrainBatch MqarData::at(int64_t index) const {
  int64_t left = index % batches_;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const int64_t own = (segments_[i].examples + batch_ - 1) / batch_;
    if (left >= own) {
      left -= own;
      continue;
    }
    const MqarExamples& all = examples(i);
    const int64_t first = left * batch_, count = std::min(batch_, segments_[i].examples - first);
    return {all.inputs.narrow(0, first, count).to(at::kLong), all.targets.narrow(0, first, count).to(at::kLong), std::nullopt};
  }
  throw std::logic_error("mqar: a batch beyond the last");
}

MqarScore mqar_score(const CausalLM& model, const Weights& w, const MqarData& data, int64_t batch) {
  const at::NoGradGuard no_grad;
  MqarScore score;
  double all = 0, examples = 0;
  for (size_t i = 0; i < data.segments().size(); ++i) {
    const MqarSegment& s = data.segments()[i];
    const MqarExamples& e = data.examples(i);
    double right = 0;
    for (int64_t first = 0; first < s.examples; first += batch) {
      const int64_t count = std::min(batch, s.examples - first);
      const at::Tensor inputs = e.inputs.narrow(0, first, count).to(at::kLong).to(model.device());
      const at::Tensor targets = e.targets.narrow(0, first, count).to(at::kLong).to(model.device()).flatten();
      const at::Tensor places = targets.ne(ops::kIgnore).nonzero().flatten();
      const at::Tensor hidden = model.forward(w, inputs).hidden.flatten(0, 1).index_select(0, places);
      const at::Tensor answers = model.head(w, hidden).argmax(-1);
      right += answers.eq(targets.index_select(0, places)).sum().item<double>();
    }
    // Every example of a segment has K queries, so the mean over examples is the mean over queries.
    score.segments.push_back(right / static_cast<double>(s.examples * s.pairs));
    all += score.segments.back() * static_cast<double>(s.examples);
    examples += static_cast<double>(s.examples);
  }
  score.pooled = all / examples;
  return score;
}

double mqar_learning_rate(double rate, int64_t epoch, int64_t epochs) {
  return rate * 0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(epoch) / static_cast<double>(epochs)));
}

}  // namespace cyfa
