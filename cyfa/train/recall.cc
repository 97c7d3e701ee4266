#include "cyfa/train/recall.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "cyfa/ops/dense/cross_entropy.h"

namespace cyfa {

TrainBatch RecallTask::at(int64_t index) const {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15 + static_cast<uint64_t>(index));
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const auto shuffle = [&](std::vector<int64_t>& list, int64_t count) {  // shuffles the first `count` elements
    for (int64_t i = 0; i < count; ++i)
      std::swap(list[static_cast<size_t>(i)], list[static_cast<size_t>(i + below(static_cast<int64_t>(list.size()) - i))]);
  };
  const at::Tensor ids = at::empty({batch, context() + 1}, at::kLong);
  auto* row = ids.data_ptr<int64_t>();
  std::vector<int64_t> key(static_cast<size_t>(keys)), order(static_cast<size_t>(pairs)), value(static_cast<size_t>(pairs));
  for (int64_t b = 0; b < batch; ++b, row += context() + 1) {
    std::iota(key.begin(), key.end(), 0);
    shuffle(key, pairs);
    std::iota(order.begin(), order.end(), 0);
    shuffle(order, pairs);
    for (int64_t& v : value) v = keys + below(values);
    for (int64_t i = 0; i < pairs; ++i) {
      const auto n = static_cast<size_t>(i), asked = static_cast<size_t>(order[n]);
      row[2 * i] = key[n];
      row[2 * i + 1] = value[n];
      row[2 * (pairs + i)] = key[asked];
      row[2 * (pairs + i) + 1] = value[asked];
    }
    row[context()] = 0;  // after the last value: never a target
  }
  TrainBatch out{ids.narrow(1, 0, context()), at::full({batch, context()}, ops::kIgnore, at::kLong), std::nullopt};
  for (int64_t i = pairs; i < 2 * pairs; ++i) out.targets.select(1, 2 * i).copy_(ids.select(1, 2 * i + 1));
  return out;
}

double recall_accuracy(const CausalLM& model, const RecallTask& task, int64_t batches) {
  const at::NoGradGuard no_grad;
  const Weights w = model.weights();
  double right = 0, asked = 0;
  RecallTask fresh = task;
  fresh.seed += 1;
  for (int64_t i = 0; i < batches; ++i) {
    const TrainBatch batch = fresh.at(i);
    const at::Tensor guess = model.head(w, model.forward(w, batch.inputs).hidden).argmax(-1);
    const at::Tensor counts = batch.targets.ne(ops::kIgnore);
    right += guess.eq(batch.targets).logical_and(counts).sum().item<double>();
    asked += counts.sum().item<double>();
  }
  return right / asked;
}

}  // namespace cyfa
