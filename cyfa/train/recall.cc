#include "cyfa/train/recall.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "cyfa/mixers/cyclic_flow.h"
#include "cyfa/ops/dense/cross_entropy.h"

namespace cyfa {
namespace {

constexpr int64_t kMostLag = 6;  // two layers with convolutions over four tokens

}  // namespace

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
    std::fill(row + 2 * pairs, row + first_query(), filler());
    for (int64_t i = 0; i < pairs; ++i) {
      const auto n = static_cast<size_t>(i), asked = static_cast<size_t>(order[n]);
      row[2 * i] = key[n];
      row[2 * i + 1] = value[n];
      row[first_query() + 2 * i] = key[asked];
      row[first_query() + 2 * i + 1] = value[asked];
    }
    row[context()] = 0;  // after the last value: never a target
  }
  TrainBatch out{ids.narrow(1, 0, context()), at::full({batch, context()}, ops::kIgnore, at::kLong), std::nullopt};
  for (int64_t t = first_query(); t < context(); t += 2) out.targets.select(1, t).copy_(ids.select(1, t + 1));
  return out;
}

std::string RecallTask::name(int64_t token) const {
  if (token == filler()) return "·";
  if (token >= keys) return std::to_string(token - keys);
  std::string letters;
  for (int64_t left = token; left >= 0; left = left / 26 - 1) letters.insert(letters.begin(), static_cast<char>('A' + left % 26));
  return letters;
}

ModelConfig RecallModels::cyclic_flow(const RecallTask& task) {
  return ModelConfig::parse({{"model_type", "cyclic_flow_attention"},
                             {"hidden_size", 64},
                             {"num_hidden_layers", kLayers},
                             {"num_heads", 2},
                             {"head_dim", 32},
                             {"num_slots", kSlots},
                             {"vocab_size", task.vocab_size()},
                             {"intermediate_size", 128}});
}

ModelConfig RecallModels::window(const RecallTask& task) {
  return ModelConfig::parse({{"model_type", "mistral"},
                             {"hidden_size", 64},
                             {"num_hidden_layers", kLayers},
                             {"num_attention_heads", 2},
                             {"num_key_value_heads", 2},
                             {"head_dim", 32},
                             {"sliding_window", kSlots},
                             {"vocab_size", task.vocab_size()},
                             {"intermediate_size", 128}});
}

at::Tensor recall_answers(const CausalLM& model, const RecallTask& task, const at::Tensor& inputs) {
  const at::NoGradGuard no_grad;
  const Weights w = model.weights();
  return model.head(w, model.forward(w, inputs).hidden).argmax(-1).slice(1, task.first_query(), task.context(), 2);
}

double recall_accuracy(const CausalLM& model, const RecallTask& task, int64_t batches) {
  double right = 0;
  RecallTask fresh = task;
  fresh.seed += 1;
  for (int64_t i = 0; i < batches; ++i) {
    const TrainBatch batch = fresh.at(i);
    right +=
        recall_answers(model, task, batch.inputs).eq(batch.targets.slice(1, task.first_query(), task.context(), 2)).sum().item<double>();
  }
  return right / static_cast<double>(batches * task.batch * task.pairs);
}

RecallReads recall_reads(const CausalLM& model, const RecallTask& task, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  const int64_t P = task.pairs, first = task.first_query();
  const Weights w = model.weights();
  const at::Tensor keys = ids.slice(0, 0, 2 * P, 2), queries = ids.slice(0, first, task.context(), 2);
  const at::Tensor asks = queries.unsqueeze(0).eq(keys.unsqueeze(1));  // [pair, query]
  RecallReads best;
  double most = -1;
  at::Tensor x = model.embed(w, ids.unsqueeze(0));
  for (size_t layer = 0; layer < model.layers().size(); ++layer) {
    const Block& block = *model.layers()[layer].block;
    const Weights own = model.layers()[layer].weights(w);
    Call call = block.call(own, x);
    const std::optional<ops::CyclicFlowReads> reads = cyclic_flow_reads(block.mixer(), call);
    TORCH_CHECK(reads, "recall_reads: layer ", layer, " is no cyclic flow layer");
    for (int64_t h = 0; h < reads->clock.size(2); ++h) {
      const at::Tensor weights = reads->writes[0].select(1, h).slice(0, first, task.context(), 2);  // [query, T]
      const at::Tensor clock = reads->clock[0].select(1, h);
      const auto m = static_cast<double>(reads->slots.size(3));
      for (int64_t lag = 0; lag <= kMostLag && 2 * (P - 1) + lag < first; ++lag) {
        const at::Tensor written = at::arange(lag, 2 * P + lag, 2);
        const at::Tensor of_pairs = weights.index_select(1, written).t();
        const auto share = of_pairs.mul(asks).sum().item<double>();
        if (share <= most) continue;
        most = share;
        const at::Tensor before = at::arange(task.context()).unsqueeze(0).lt(written.unsqueeze(1));
        best = {static_cast<int64_t>(layer),
                h,
                lag,
                at::cat({clock.narrow(0, 0, 1), clock.diff()}),
                reads->beta[0].select(1, h),
                (clock.unsqueeze(0) - clock.index_select(0, written).unsqueeze(1)).remainder(m).masked_fill(before, std::nan("")),
                reads->slots[0].select(1, h).t(),
                of_pairs,
                asks.to(at::kLong).argmax(0)};
      }
    }
    MixerState after;
    x = block.forward(own, x, std::nullopt, nullptr, &after);
  }
  return best;
}

}  // namespace cyfa
