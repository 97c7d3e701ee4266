#include "cyfa/analysis/increments.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace cyfa::analysis {
namespace {

constexpr double kNearOne = 0.95, kSpread = 0.1;
constexpr int64_t kLeastOccurrences = 8;  // of a token in a case
constexpr int64_t kContext = 8;           // tokens of context on either side

double ratio(double part, double whole) { return whole > 0 ? part / whole : std::nan(""); }

// The value at `share` of a sorted row, between neighbours by linear interpolation.
double value_at(const at::Tensor& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size(0) - 1);
  const auto below = static_cast<int64_t>(place);
  const auto a = sorted[below].item<double>(), b = sorted[std::min(below + 1, sorted.size(0) - 1)].item<double>();
  return a + (b - a) * (place - static_cast<double>(below));
}

struct Moments {
  double mean, variance;
};
Moments moments(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  return {wide.mean().item<double>(), wide.var(at::OptionalIntArrayRef(at::IntArrayRef{}), int64_t{0}).item<double>()};
}

// Distinct tokens of the text, and for each token of the text its index among them.
struct Types {
  at::Tensor tokens, index, counts;
};
Types types_of(const at::Tensor& ids) {
  auto [tokens, index, counts] = at::_unique2(ids.flatten(), true, true, true);
  return {tokens, index, counts};
}

double adjusted_share(double within, double all, int64_t observations, int64_t types) {
  if (observations <= types) return std::nan("");
  return 1 - ratio(within / static_cast<double>(observations - types), all / static_cast<double>(observations - 1));
}

bool is_word(const std::string& piece) {
  return std::count_if(piece.begin(), piece.end(), [](unsigned char c) { return std::isalpha(c) != 0; }) >= 3;
}
bool is_visible(const std::string& piece) {
  return std::any_of(piece.begin(), piece.end(), [](unsigned char c) { return std::isgraph(c) != 0; });
}

std::string text_of(const Tokenizer& tokenizer, const at::Tensor& ids, int64_t begin, int64_t end) {
  std::string out;
  for (int64_t t = std::max<int64_t>(begin, 0); t < std::min(end, ids.size(0)); ++t) out += tokenizer.piece(ids[t].item<int64_t>());
  return out;
}

}  // namespace

Increments measure_increments(const CausalLM& model, const Weights& w, const at::Tensor& ids, const Progress& progress) {
  const at::NoGradGuard no_grad;
  Increments out{clock_heads(model), ids.to(at::kCPU, at::kLong), {}};
  const int64_t N = ids.size(0), T = ids.size(1);
  out.delta = at::empty({static_cast<int64_t>(out.heads.size()), N, T}, at::kFloat);
  for (int64_t n = 0; n < N; ++n) {
    forward_with_clock(model, w, ids.narrow(0, n, 1), [&](const ClockLayer& layer, const at::Tensor& delta) {
      out.delta.narrow(0, layer.first, layer.heads).select(1, n).copy_(delta[0].t());
      return delta;
    });
    if (progress) progress(n + 1, N);
  }
  return out;
}

const char* class_name(HeadClass kind) {
  switch (kind) {
    case HeadClass::kNearOne: return "near one";
    case HeadClass::kInputDependent: return "input dependent";
    case HeadClass::kOther: return "other";
  }
  return "";
}

std::vector<HeadIncrements> increments_by_head(const Increments& increments) {
  std::vector<HeadIncrements> out;
  for (size_t i = 0; i < increments.heads.size(); ++i) {
    const at::Tensor delta = increments.delta[static_cast<int64_t>(i)].flatten();
    const auto [mean, variance] = moments(delta);
    const at::Tensor sorted = std::get<0>(delta.sort());
    HeadIncrements one{increments.heads[i], mean, std::sqrt(variance), value_at(sorted, 0.05), value_at(sorted, 0.95)};
    if (one.p05 > kNearOne) {
      one.kind = HeadClass::kNearOne;
    } else if (one.p95 - one.p05 >= kSpread) {
      one.kind = HeadClass::kInputDependent;
    }
    out.push_back(one);
  }
  return out;
}

std::vector<ClassIncrements> increments_by_class(const Increments& increments, const std::vector<HeadIncrements>& by_head) {
  std::vector<ClassIncrements> out;
  for (const HeadClass kind : {HeadClass::kNearOne, HeadClass::kInputDependent, HeadClass::kOther}) {
    std::vector<int64_t> members;
    for (size_t i = 0; i < by_head.size(); ++i) {
      if (by_head[i].kind == kind) members.push_back(static_cast<int64_t>(i));
    }
    ClassIncrements one{kind, static_cast<int64_t>(members.size()), std::nan(""), std::nan("")};
    if (!members.empty()) {
      const auto [mean, variance] = moments(increments.delta.index_select(0, at::tensor(members, at::kLong)));
      one.mean = mean;
      one.deviation = std::sqrt(variance);
    }
    out.push_back(one);
  }
  return out;
}

at::Tensor increment_histogram(const Increments& increments, int64_t bins) {
  const auto heads = static_cast<int64_t>(increments.heads.size());
  const at::Tensor delta = increments.delta.flatten(1);
  const at::Tensor bin = (delta * static_cast<double>(bins)).floor().clamp(0, static_cast<double>(bins - 1)).to(at::kLong);
  const at::Tensor counts = at::zeros({heads, bins}, at::kDouble).scatter_add(1, bin, at::ones_like(delta, at::kDouble));
  return counts / static_cast<double>(delta.size(1));
}

std::vector<TokenSplit> split_by_token(const Increments& increments) {
  const Types types = types_of(increments.ids);
  const int64_t V = types.tokens.size(0), N = types.index.size(0);
  const at::Tensor counts = types.counts.to(at::kDouble);
  std::vector<TokenSplit> out;
  for (size_t i = 0; i < increments.heads.size(); ++i) {
    const at::Tensor delta = increments.delta[static_cast<int64_t>(i)].flatten().to(at::kDouble);
    const at::Tensor means = at::zeros({V}, at::kDouble).scatter_add(0, types.index, delta) / counts;
    const double between = (counts * (means - delta.mean()).square()).sum().item<double>() / static_cast<double>(N);
    const double within = (delta - means.index_select(0, types.index)).square().mean().item<double>();
    const double all = between + within;
    out.push_back({increments.heads[i], between, within, ratio(between, all), adjusted_share(within, all, N, V)});
  }
  return out;
}

TokenSplit total_split(const std::vector<TokenSplit>& splits, const std::vector<bool>& counted, const Increments& increments) {
  TokenSplit sum;
  for (size_t i = 0; i < splits.size(); ++i) {
    if (!counted[i]) continue;
    sum.between += splits[i].between;
    sum.within += splits[i].within;
  }
  const Types types = types_of(increments.ids);
  const double all = sum.between + sum.within;
  sum.identity = ratio(sum.between, all);
  sum.adjusted = adjusted_share(sum.within, all, types.index.size(0), types.tokens.size(0));
  return sum;
}

std::vector<bool> context_heads(const std::vector<HeadIncrements>& by_head) {
  std::vector<bool> counted;
  for (const HeadIncrements& one : by_head) counted.push_back(one.kind == HeadClass::kInputDependent && one.head.layer > 0);
  return counted;
}

std::vector<TokenCase> token_cases(const Increments& increments, const std::vector<bool>& counted, const Tokenizer& tokenizer,
                                   size_t most) {
  const Types types = types_of(increments.ids);
  const int64_t T = increments.ids.size(1);
  std::vector<int64_t> heads;
  for (size_t i = 0; i < counted.size(); ++i) {
    if (counted[i]) heads.push_back(static_cast<int64_t>(i));
  }
  if (heads.empty()) return {};
  const at::Tensor delta = increments.delta.flatten(1).index_select(0, at::tensor(heads, at::kLong));  // [counted heads, N * T]
  // Sorted by token, the places of one token in the text are neighbours.
  const at::Tensor order = std::get<1>(types.index.sort(true, 0, false)), begins = types.counts.cumsum(0) - types.counts;
  const auto places_of = [&](int64_t v) { return order.narrow(0, begins[v].item<int64_t>(), types.counts[v].item<int64_t>()); };
  const auto tenth = [](int64_t count) { return (count - 1) / 10; };

  struct Candidate {
    size_t head;
    int64_t type;
    double spread;
  };
  std::vector<Candidate> all;
  const auto collect = [&](bool (*wanted)(const std::string&)) {
    for (int64_t v = 0; v < types.tokens.size(0); ++v) {
      const auto count = types.counts[v].item<int64_t>();
      if (count < kLeastOccurrences || !wanted(tokenizer.piece(types.tokens[v].item<int64_t>()))) continue;
      const at::Tensor sorted = std::get<0>(delta.index_select(1, places_of(v)).sort(1));
      const at::Tensor spread = (sorted.select(1, count - 1 - tenth(count)) - sorted.select(1, tenth(count))).to(at::kDouble).contiguous();
      for (size_t i = 0; i < heads.size(); ++i) {
        if (const double one = spread.const_data_ptr<double>()[i]; one > 0) all.push_back({i, v, one});
      }
    }
  };
  collect(is_word);
  if (all.empty()) collect(is_visible);
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.spread > b.spread; });

  std::vector<TokenCase> best;
  std::set<size_t> used_heads;
  std::set<int64_t> used_types;
  for (const Candidate& one : all) {
    if (best.size() == most) break;
    if (used_heads.contains(one.head) || used_types.contains(one.type)) continue;
    used_heads.insert(one.head);
    used_types.insert(one.type);
    const at::Tensor places = places_of(one.type);
    const auto [sorted, rank] = delta[static_cast<int64_t>(one.head)].index_select(0, places).sort();
    const auto occurrence = [&, values = sorted, by_rank = rank](int64_t at) {
      const auto place = places[by_rank[at].item<int64_t>()].item<int64_t>();
      const at::Tensor row = increments.ids[place / T];
      const int64_t t = place % T;
      return Occurrence{place / T, t, values[at].item<double>(), text_of(tokenizer, row, t - kContext, t),
                        text_of(tokenizer, row, t + 1, t + 1 + kContext)};
    };
    const auto token = types.tokens[one.type].item<int64_t>();
    const int64_t count = places.size(0);
    best.push_back({increments.heads[static_cast<size_t>(heads[one.head])], token, tokenizer.piece(token), count, one.spread,
                    occurrence(tenth(count)), occurrence(count - 1 - tenth(count))});
  }
  return best;
}

}  // namespace cyfa::analysis
