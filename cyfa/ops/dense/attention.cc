// See attention.h.
#include "cyfa/ops/dense/attention.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/common/grain.h"
#include "cyfa/ops/common/in_place.h"

namespace cyfa::ops {
namespace {

constexpr const char* kOp = "attention";

// A growing cache has places for a multiple of this many tokens, so that few decode steps reallocate it.
constexpr int64_t kPlaces = 64;

int64_t places_for(int64_t tokens, int64_t window) { return window > 0 ? window : (tokens + kPlaces - 1) / kPlaces * kPlaces; }

// x [N, places, G, D] extended with zeros to at least `places`.
at::Tensor widened(const at::Tensor& x, int64_t places) {
  if (x.size(1) >= places) return x;
  std::vector<int64_t> rest = x.sizes().vec();
  rest[1] = places - x.size(1);
  return at::cat({x, at::zeros(rest, x.options())}, 1);
}

// Sequences of equal length: q [N, T, H, D]; k, v [N, P + T, G, D] with P tokens before the first query; mask [.., T, P + T].
at::Tensor sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask, bool causal) {
  const bool grouped = q.size(2) != k.size(2);
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, 0.0, causal, std::nullopt, grouped)
      .transpose(1, 2);
}

// Attention over all previous tokens: past [N, P, G, D] and the new ones.
at::Tensor full(const at::Tensor& q, const at::Tensor& past_k, const at::Tensor& past_v, const at::Tensor& k, const at::Tensor& v) {
  const int64_t T = q.size(1), P = past_k.size(1);
  if (P == 0) return sdpa(q, k, v, std::nullopt, true);
  const at::Tensor mask = at::ones({T, P + T}, q.options().dtype(at::kBool)).tril(P);
  return sdpa(q, at::cat({past_k, k}, 1), at::cat({past_v, v}, 1), mask, false);
}

// Attention over the last W tokens. Queries are processed in blocks of W, each of which sees its own and the previous block, so that the
// work grows linearly with T. past is [N, P, G, D] with P < W.
at::Tensor windowed(const at::Tensor& q, const at::Tensor& past_k, const at::Tensor& past_v, const at::Tensor& k, const at::Tensor& v,
                    int64_t W) {
  const int64_t N = q.size(0), T = q.size(1), P = past_k.size(1), blocks = (T + W - 1) / W;
  const auto zeros = [&](const at::Tensor& like, int64_t tokens) {
    return at::zeros({N, tokens, like.size(2), like.size(3)}, like.options());
  };
  // [N * blocks, 2 W, G, D]: W - P empty places, the past, the new tokens, padding.
  const auto pairs = [&](const at::Tensor& past, const at::Tensor& now) {
    const at::Tensor all = at::cat({zeros(now, W - P), past, now, zeros(now, blocks * W - T)}, 1);
    return all.unfold(1, 2 * W, W).permute({0, 1, 4, 2, 3}).reshape({N * blocks, 2 * W, now.size(2), now.size(3)});
  };
  const at::Tensor queries = at::cat({q, zeros(q, blocks * W - T)}, 1).reshape({N * blocks, W, q.size(2), q.size(3)});
  // Query a of a block is at place W + a of its two blocks and sees places a + 1 .. a + W.
  at::Tensor mask = at::ones({W, 2 * W}, q.options().dtype(at::kBool));
  mask = mask.triu(1).tril_(W).expand({N, blocks, W, 2 * W}).clone();
  mask.select(1, 0).narrow(2, 0, W - P).fill_(false);
  const at::Tensor o = sdpa(queries, pairs(past_k, k), pairs(past_v, v), mask.view({N * blocks, 1, W, 2 * W}), false);
  return o.reshape({N, blocks * W, q.size(2), q.size(3)}).narrow(1, 0, T);
}

// The cached tokens that later queries can see, in order, for sequences that have all seen `seen` tokens.
at::Tensor past_of(const at::Tensor& cache, int64_t seen, int64_t window) {
  if (window == 0 || seen < window) return cache.narrow(1, 0, window > 0 ? std::min(seen, window - 1) : seen);
  return at::roll(cache, -(seen % window), 1).narrow(1, 1, window - 1);
}

// The cache after the new tokens.
at::Tensor next_cache(const at::Tensor& past, const at::Tensor& now, int64_t seen, int64_t window, int64_t places) {
  const at::Tensor rows = at::cat({past, now}, 1);
  const int64_t all = seen + now.size(1);
  if (window == 0 || all <= window) return widened(rows, places);
  return at::roll(rows.narrow(1, rows.size(1) - window, window), all % window, 1);
}

// Checks type and device of a cache, whose shapes have been checked.
void check_cache(const char* op, const char* k, const char* v, const char* tokens, const AttentionCache& cache, at::Device device) {
  check::floating(op, k, cache.k);
  check::same_dtype(op, v, cache.v, k, cache.k.scalar_type());
  check::same_dtype(op, tokens, cache.tokens, "counters", at::kLong);
  for (const auto& [name, x] : {std::pair<const char*, const at::Tensor&>{k, cache.k}, {v, cache.v}, {tokens, cache.tokens}}) {
    check::same_device(op, name, x, "q", device);
  }
}

void check_types(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check::floating(op, "q", q);
  for (const auto& [name, x] : {std::pair<const char*, const at::Tensor&>{"k", k}, {"v", v}}) {
    check::floating(op, name, x);
    check::same_device(op, name, x, "q", q.device());
  }
}

std::vector<int64_t> host(const at::Tensor& tokens) {
  const at::Tensor x = tokens.to(at::kCPU, at::kLong).contiguous();
  return {x.const_data_ptr<int64_t>(), x.const_data_ptr<int64_t>() + x.numel()};
}

void check_window(const char* op, int64_t window) {
  if (window < 0) check::fail(op, "window is " + std::to_string(window) + ", wanted at least 0");
}

// Throws unless the cache has room for the tokens that it claims to hold.
void check_seen(const char* op, const std::vector<int64_t>& seen, const at::Tensor& k, int64_t window) {
  if (window > 0 && k.size(1) != window)
    check::fail(op, "the cache has " + std::to_string(k.size(1)) + " places, wanted the window's " + std::to_string(window));
  for (const int64_t s : seen) {
    if (s < 0 || (window == 0 && s > k.size(1))) {
      check::fail(op, "the cache has seen " + std::to_string(s) + " tokens and has places for " + std::to_string(k.size(1)));
    }
  }
}

// One query against n keys and values with `stride` between rows. `score` is scratch space for n floats.
void attend(int64_t n, int64_t D, const float* q, const float* k, const float* v, int64_t stride, float scale, float* score, float* o) {
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    float lanes[8] = {};
    const float* row = k + i * stride;
    int64_t d = 0;
    for (; d + 8 <= D; d += 8) {
      for (int64_t l = 0; l < 8; ++l) lanes[l] += q[d + l] * row[d + l];
    }
    float sum = 0;
    for (; d < D; ++d) sum += q[d] * row[d];
    for (const float lane : lanes) sum += lane;
    score[i] = sum * scale;
    most = std::max(most, score[i]);
  }
  double total = 0;
  for (int64_t d = 0; d < D; ++d) o[d] = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float p = std::exp(score[i] - most);
    total += p;
    const float* row = v + i * stride;
    for (int64_t d = 0; d < D; ++d) o[d] += p * row[d];
  }
  const auto rate = static_cast<float>(1 / total);
  for (int64_t d = 0; d < D; ++d) o[d] *= rate;
}

}  // namespace

AttentionOutput attention(const AttentionInputs& in) {
  const WithoutAutocast plain_types;
  check::shape(kOp, "q", in.q, {{"B", -1}, {"T", -1}, {"H", -1}, {"D", -1}});
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2), D = in.q.size(3);
  check::shape(kOp, "k", in.k, {{"B", B}, {"T", T}, {"G", -1}, {"D", D}});
  const int64_t G = in.k.size(2);
  check::shape(kOp, "v", in.v, {{"B", B}, {"T", T}, {"G", G}, {"D", D}});
  if (G < 1 || H % G != 0) check::fail(kOp, std::to_string(H) + " query heads do not divide among " + std::to_string(G) + " key heads");
  check_types(kOp, in.q, in.k, in.v);
  check_window(kOp, in.window);
  std::vector<int64_t> offsets;
  if (in.cu_seqlens) {
    check::borders(kOp, *in.cu_seqlens, B, in.q.device());
    offsets = check::sequence_offsets(kOp, *in.cu_seqlens, T);
  }
  const int64_t N = in.cu_seqlens ? static_cast<int64_t>(offsets.size()) - 1 : B;
  std::vector<int64_t> seen(static_cast<size_t>(N), 0);
  if (in.initial) {
    check::shape(kOp, "initial.k", in.initial->k, {{"N", N}, {"places", -1}, {"G", G}, {"D", D}});
    check::shape(kOp, "initial.v", in.initial->v, {{"N", N}, {"places", in.initial->k.size(1)}, {"G", G}, {"D", D}});
    check::shape(kOp, "initial.tokens", in.initial->tokens, {{"N", N}});
    check_cache(kOp, "initial.k", "initial.v", "initial.tokens", *in.initial, in.q.device());
    seen = host(in.initial->tokens);
  }
  if (in.initial) check_seen(kOp, seen, in.initial->k, in.window);
  const auto count = [&](int64_t n) { return in.cu_seqlens ? offsets[static_cast<size_t>(n) + 1] - offsets[static_cast<size_t>(n)] : T; };
  int64_t places = 0;
  for (int64_t n = 0; n < N; ++n) places = std::max(places, places_for(seen[static_cast<size_t>(n)] + count(n), in.window));

  // Sequences that have seen equally many tokens are processed together, others one by one.
  const bool together = !in.cu_seqlens && std::all_of(seen.begin(), seen.end(), [&](int64_t s) { return s == seen[0]; });
  AttentionOutput out;
  std::vector<at::Tensor> o, keys, values;
  const auto work = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t first, int64_t n, int64_t before) {
    const at::Tensor none = at::empty({n, 0, G, D}, k.options());
    const auto past = [&](const at::Tensor& cache) { return past_of(cache.narrow(0, first, n), before, in.window).to(k.scalar_type()); };
    const at::Tensor past_k = in.initial ? past(in.initial->k) : none, past_v = in.initial ? past(in.initial->v) : none;
    // A full ring buffer holds one token more than later queries can see: the one that is overwritten next.
    const auto all = [&](const at::Tensor& cache, const at::Tensor& seen_by_queries) {
      const bool whole = in.initial && in.window > 0 && before >= in.window;
      return whole ? at::roll(cache.narrow(0, first, n), -(before % in.window), 1).to(k.scalar_type()) : seen_by_queries;
    };
    if (q.size(1) > 0) o.push_back(in.window > 0 ? windowed(q, past_k, past_v, k, v, in.window) : full(q, past_k, past_v, k, v));
    keys.push_back(next_cache(in.initial ? all(in.initial->k, past_k) : past_k, k, before, in.window, places));
    values.push_back(next_cache(in.initial ? all(in.initial->v, past_v) : past_v, v, before, in.window, places));
  };
  if (together && N > 0) {
    work(in.q, in.k, in.v, 0, N, seen[0]);
    out.o = o.empty() ? at::zeros_like(in.q) : o[0];
  } else {
    for (int64_t n = 0; n < N; ++n) {
      const auto part = [&](const at::Tensor& x) {
        return in.cu_seqlens ? x.narrow(1, offsets[static_cast<size_t>(n)], count(n)) : x.narrow(0, n, 1);
      };
      work(part(in.q), part(in.k), part(in.v), n, 1, seen[static_cast<size_t>(n)]);
    }
    out.o = o.empty() ? at::zeros_like(in.q) : at::cat(o, in.cu_seqlens ? 1 : 0);
  }
  const at::ScalarType stored = at::promote_types(in.k.scalar_type(), at::kFloat);
  const auto joined = [&](const std::vector<at::Tensor>& parts) {
    return (parts.empty() ? at::zeros({0, places, G, D}, in.k.options()) : at::cat(parts, 0)).to(stored);
  };
  std::vector<int64_t> tokens;
  for (int64_t n = 0; n < N; ++n) tokens.push_back(seen[static_cast<size_t>(n)] + count(n));
  out.cache = {joined(keys), joined(values), at::tensor(tokens, at::kLong).to(in.q.device())};
  return out;
}

at::Tensor attention_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, AttentionCache& cache, int64_t window) {
  constexpr const char* kStep = "attention_step";
  const WithoutAutocast plain_types;
  check::shape(kStep, "q", q, {{"B", -1}, {"H", -1}, {"D", -1}});
  const int64_t B = q.size(0), H = q.size(1), D = q.size(2);
  check::shape(kStep, "k", k, {{"B", B}, {"G", -1}, {"D", D}});
  const int64_t G = k.size(1);
  check::shape(kStep, "v", v, {{"B", B}, {"G", G}, {"D", D}});
  check::shape(kStep, "cache.k", cache.k, {{"B", B}, {"places", -1}, {"G", G}, {"D", D}});
  check::shape(kStep, "cache.v", cache.v, {{"B", B}, {"places", cache.k.size(1)}, {"G", G}, {"D", D}});
  check::shape(kStep, "cache.tokens", cache.tokens, {{"B", B}});
  check_types(kStep, q, k, v);
  check_cache(kStep, "cache.k", "cache.v", "cache.tokens", cache, q.device());
  check_window(kStep, window);
  check::written(kStep, {{"cache.k", cache.k}, {"cache.v", cache.v}, {"cache.tokens", cache.tokens}}, {{"q", q}, {"k", k}, {"v", v}});
  if (G < 1 || H % G != 0) check::fail(kStep, std::to_string(H) + " query heads do not divide among " + std::to_string(G) + " key heads");
  const std::vector<int64_t> seen = host(cache.tokens);
  check_seen(kStep, seen, cache.k, window);
  mark_written(kStep, {cache.k, cache.v, cache.tokens});
  const at::NoGradGuard no_grad;
  int64_t places = 0;
  for (const int64_t s : seen) places = std::max(places, places_for(s + 1, window));
  cache.k = widened(cache.k, places).contiguous();
  cache.v = widened(cache.v, places).contiguous();
  for (int64_t n = 0; n < B; ++n) {
    const int64_t place = window > 0 ? seen[static_cast<size_t>(n)] % window : seen[static_cast<size_t>(n)];
    cache.k.select(0, n).select(0, place).copy_(k[n]);
    cache.v.select(0, n).select(0, place).copy_(v[n]);
  }
  cache.tokens.add_(1);
  const auto stored = [&](int64_t n) {
    return window > 0 ? std::min(window, seen[static_cast<size_t>(n)] + 1) : seen[static_cast<size_t>(n)] + 1;
  };
  if (!q.is_cpu() || q.scalar_type() != at::kFloat || cache.k.scalar_type() != at::kFloat) {
    std::vector<at::Tensor> o;
    for (int64_t n = 0; n < B; ++n) {
      const auto rows = [&](const at::Tensor& x) { return x.narrow(0, n, 1).narrow(1, 0, stored(n)).to(q.scalar_type()); };
      o.push_back(sdpa(q.narrow(0, n, 1).unsqueeze(1), rows(cache.k), rows(cache.v), std::nullopt, false).squeeze(1));
    }
    return o.empty() ? at::zeros_like(q) : at::cat(o, 0);
  }
  const at::Tensor in = q.contiguous(), out = at::empty_like(in);
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(D)));
  const int64_t stride = G * D, all = cache.k.size(1) * stride;
  at::parallel_for(0, B * H, grain(2 * cache.k.size(1) * D), [&](int64_t begin, int64_t end) {
    std::vector<float> score(static_cast<size_t>(cache.k.size(1)));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / H, g = i % H / (H / G);
      attend(stored(n), D, in.const_data_ptr<float>() + i * D, cache.k.const_data_ptr<float>() + n * all + g * D,
             cache.v.const_data_ptr<float>() + n * all + g * D, stride, scale, score.data(), out.data_ptr<float>() + i * D);
    }
  });
  return out;
}

}  // namespace cyfa::ops
