// Tests that hold for every recurrence op and backend, run for each op and type.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

struct OpAndType {
  Op op;
  at::ScalarType dtype;
};

std::string name_of(const testing::TestParamInfo<OpAndType>& test) { return op_label(test.param.op) + "_" + dtype_label(test.param.dtype); }

class Contract : public testing::TestWithParam<OpAndType> {
 protected:
  // `c` for the op and type under test.
  OpCase make(OpCase c = {}) const {
    c.op = GetParam().op;
    c.dtype = GetParam().dtype;
    return c;
  }
  Op op() const { return GetParam().op; }
  bool cyclic() const { return op() == Op::kCyclicFlow; }

  // Turns tokens begin .. end - 1 into padding: they do not write, decay or advance the clock, but still read. A gate that is shared by all
  // tokens is opened.
  void pad(const Tensors& inputs, int64_t begin, int64_t end) const {
    for (const char* name : {"log_alpha", "delta", "beta"}) {
      if (inputs.contains(name)) inputs.at(name).narrow(1, begin, end - begin).zero_();
    }
    if (inputs.contains("log_gamma")) inputs.at("log_gamma").zero_();
    if (!cyclic()) inputs.at("k").narrow(1, begin, end - begin).zero_();
  }
};

std::vector<OpAndType> ops_and_types() {
  std::vector<OpAndType> all;
  for (const Op op : all_ops()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) all.push_back({op, dtype});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ops, Contract, testing::ValuesIn(ops_and_types()), name_of);

// Combines the results of independent calls: concatenates tokens and states, adds gradients of shared weights.
Tensors joined(const std::vector<Tensors>& parts, int64_t token_dim) {
  Tensors whole;
  for (const auto& [name, first] : parts.front()) {
    std::vector<at::Tensor> pieces;
    for (const Tensors& part : parts) pieces.push_back(part.at(name));
    if (is_token_result(name)) {
      whole[name] = at::cat(pieces, token_dim);
    } else if (is_state(name)) {
      whole[name] = at::cat(pieces, 0);
    } else {
      whole[name] = at::stack(pieces).sum(0);
    }
  }
  return whole;
}

// The results that must be bitwise independent of the batch. Gradients of shared weights are sums over the batch. d_log_alpha may differ by
// rounding: it sums over a whole state, and ATen splits the sum by the number of sequences processed together.
Tensors per_sequence(const Tensors& results) {
  Tensors kept;
  for (const auto& [name, x] : results) {
    if ((is_token_result(name) || is_state(name)) && name != "d_log_alpha") kept[name] = x;
  }
  return kept;
}

// Runs one sequence in pieces that end at `borders`, passing states forward and their gradients backward.
Tensors run_in_pieces(Op op, const Tensors& inputs, const Tensors& gradients, std::vector<int64_t> borders, const RunOptions& options) {
  borders.insert(borders.begin(), 0);
  const size_t count = borders.size() - 1;
  std::vector<Tensors> pieces;
  Tensors state_at = inputs;
  for (size_t i = 0; i < count; ++i) {
    pieces.push_back(tokens(state_at, borders[i], borders[i + 1]));
    carry(run(op, pieces.back(), {}, options), state_at);
  }
  std::vector<Tensors> results(count);
  Tensors upstream = gradients;
  for (size_t i = count; i-- > 0;) {
    Tensors here = upstream;
    here["o"] = gradients.at("o").narrow(1, borders[i], borders[i + 1] - borders[i]);
    results[i] = run(op, pieces[i], here, options);
    for (const auto& [name, x] : results[i]) {
      if (name.starts_with("d_initial_")) upstream["final_" + name.substr(10)] = x;
    }
  }
  const Tensors last = results.back();
  Tensors first_states;
  for (Tensors& piece : results) {
    for (auto entry = piece.begin(); entry != piece.end();) {
      if (is_state(entry->first)) {
        first_states.insert(*entry);
        entry = piece.erase(entry);
      } else {
        ++entry;
      }
    }
  }
  Tensors whole = joined(results, 1);
  for (const auto& [name, x] : last) {
    if (name.starts_with("final_")) whole[name] = x;
  }
  for (const auto& [name, x] : first_states) {
    if (inputs.contains(name.substr(2))) whole[name] = x;
  }
  return whole;
}

// Runs each sequence of a packed batch in a separate call.
Tensors run_separately(Op op, const Tensors& inputs, const Tensors& gradients, const std::vector<int64_t>& lengths,
                       const RunOptions& options) {
  std::vector<Tensors> parts;
  int64_t begin = 0;
  for (size_t n = 0; n < lengths.size(); ++n) {
    const auto cut = [&](const Tensors& x) {
      Tensors part = tokens(x, begin, begin + lengths[n]);
      for (auto& [name, t] : part) {
        if (is_state(name)) t = t.narrow(0, static_cast<int64_t>(n), 1);
      }
      part.erase("cu_seqlens");
      return part;
    };
    parts.push_back(run(op, cut(inputs), cut(gradients), options));
    begin += lengths[n];
  }
  return joined(parts, 1);
}

std::vector<int64_t> random_lengths(std::mt19937_64& engine, int64_t count, int64_t longest) {
  std::vector<int64_t> lengths;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t kind = std::uniform_int_distribution<int64_t>(0, 5)(engine);
    lengths.push_back(kind == 0 ? 0 : kind == 1 ? 1 : std::uniform_int_distribution<int64_t>(0, longest)(engine));
  }
  return lengths;
}

TEST_P(Contract, MatchesReferenceAtEveryLength) {
  constexpr int64_t kChunk = 16;
  constexpr int64_t kDefaultChunk = 64;
  for (const auto& [chunk, C] : {std::pair<int64_t, int64_t>{kChunk, kChunk}, {0, kDefaultChunk}}) {
    for (const int64_t T : {int64_t{0}, int64_t{1}, C - 1, C, C + 1, 2 * C + 3, 9 * C + 5}) {
      for (const bool state : {false, true}) {
        const OpCase c = make({.T = T, .H = 3, .V = 12, .initial_state = state, .seed = static_cast<uint64_t>(T + 7)});
        SCOPED_TRACE(describe(c) + " chunk " + std::to_string(chunk));
        expect_close(run(c, {.chunk = chunk, .segment_chunks = 2}), judge(c));
      }
    }
  }
}

TEST_P(Contract, MatchesReferenceForEveryShape) {
  for (const OpCase& shape :
       {OpCase{.B = 1, .T = 20, .H = 1, .K = 2, .V = 1}, OpCase{.B = 1, .T = 70, .H = 5, .K = 8, .V = 24},
        OpCase{.B = 3, .T = 33, .H = 7, .K = 24, .V = 8}, OpCase{.B = 9, .T = 18, .H = 1, .K = 3, .V = 5},
        OpCase{.B = 1, .T = 130, .H = 2, .K = 64, .V = 64, .M = 32}, OpCase{.B = 0, .T = 5}, OpCase{.B = 0, .T = 0}}) {
    for (const bool bare : {false, true}) {
      OpCase c = make(shape);
      c.norm_weights = !bare;
      c.initial_state = !bare;
      SCOPED_TRACE(describe(c));
      expect_close(run(c), judge(c));
    }
  }
}

TEST_P(Contract, EverySplitWithCarriedStateIsTheWhole) {
  for (const bool state : {false, true}) {
    const OpCase c = make({.B = 2, .T = 37, .K = 8, .V = 6, .M = 8, .initial_state = state});
    const Tensors inputs = make_inputs(c);
    const Tensors gradients = make_output_gradients(c);
    const Tensors want = judge(c);
    for (int64_t split = 0; split <= c.T; ++split) {
      SCOPED_TRACE(describe(c) + " split at " + std::to_string(split));
      expect_close(run_in_pieces(c.op, inputs, gradients, {split, c.T}, {.chunk = 16, .segment_chunks = 2}), want);
    }
  }
}

TEST_P(Contract, ManyPiecesWithCarriedStateAreTheWhole) {
  const OpCase c = make({.B = 1, .T = 400, .K = 12, .V = 8, .M = 16});
  const Tensors inputs = make_inputs(c);
  const Tensors gradients = make_output_gradients(c);
  const Tensors want = judge(c);
  expect_close(run(c), want);
  for (const std::vector<int64_t>& borders :
       {std::vector<int64_t>{1, 400}, {63, 400}, {64, 400}, {65, 128, 129, 400}, {399, 400}, {0, 0, 200, 200, 399, 400, 400}}) {
    SCOPED_TRACE(at::IntArrayRef(borders));
    expect_close(run_in_pieces(c.op, inputs, gradients, borders, {}), want);
  }
}

TEST_P(Contract, PackedIsSeparate) {
  std::mt19937_64 engine(5);
  std::vector<std::vector<int64_t>> batches = {{5, 0, 1, 30},   {0},        {0, 0, 0},    {1},
                                               {1, 1, 1, 1, 1}, {0, 40, 0}, {16, 16, 16}, {33, 16, 15, 17, 1, 0, 64}};
  for (int64_t i = 0; i < 8; ++i) batches.push_back(random_lengths(engine, 1 + i, 50));
  uint64_t seed = 1;
  for (const std::vector<int64_t>& lengths : batches) {
    for (const bool state : {false, true}) {
      const int64_t H = seed % 2 == 0 ? 1 : 3;
      const OpCase c = make({.lengths = lengths, .H = H, .K = 8, .V = 6, .M = 8, .initial_state = state, .seed = seed++});
      SCOPED_TRACE(describe(c));
      const RunOptions options{.chunk = 16, .segment_chunks = 1};
      const Tensors packed = run(c, options);
      expect_close(packed, judge(c));
      expect_close(packed, run_separately(c.op, make_inputs(c), make_output_gradients(c), lengths, options));
    }
  }
}

TEST_P(Contract, PackedWithDefaultChunksIsTheReference) {
  std::mt19937_64 engine(6);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const OpCase c = make({.lengths = random_lengths(engine, 9, 180), .H = 1, .K = 8, .V = 6, .M = 8, .seed = seed});
    SCOPED_TRACE(describe(c));
    expect_close(run(c), judge(c));
  }
}

// Sequences are isolated: not even a NaN in one may affect another. Otherwise states would leak between requests.
TEST_P(Contract, SequencesNeverTouchEachOther) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<int64_t> lengths = {20, 1, 37, 0, 18, 37};
  for (const size_t poisoned : {size_t{0}, size_t{1}, size_t{2}, size_t{5}}) {
    const OpCase c = make({.lengths = lengths, .K = 8, .V = 6, .M = 8});
    const RunOptions options{.chunk = 16, .segment_chunks = 1};
    const Tensors inputs = make_inputs(c);
    const Tensors gradients = make_output_gradients(c);
    const Tensors clean = run(c.op, inputs, gradients, options);
    const Tensors other = clone(inputs);
    const int64_t begin = other.at("cu_seqlens")[static_cast<int64_t>(poisoned)].item<int64_t>();
    for (const auto& [name, x] : other) {
      if (is_token_input(name) && name != "log_alpha") x.narrow(1, begin, lengths[poisoned]).fill_(kNan);
    }
    const Tensors dirty = run(c.op, other, gradients, options);
    SCOPED_TRACE("NaN in sequence " + std::to_string(poisoned));
    int64_t at = 0;
    for (size_t n = 0; n < lengths.size(); ++n) {
      for (const auto& [name, x] : clean) {
        const bool token = is_token_result(name);
        if (n == poisoned || (!token && !is_state(name))) continue;
        const int64_t row = static_cast<int64_t>(n);
        const auto part = [&](const at::Tensor& t) { return token ? t.narrow(1, at, lengths[n]) : t.narrow(0, row, 1); };
        EXPECT_TRUE(same_bits(part(dirty.at(name)), part(x))) << name << " of sequence " << n;
      }
      at += lengths[n];
    }
  }
}

TEST_P(Contract, PaddingAloneLeavesTheStateBitForBit) {
  for (const int64_t T : {1, 5, 16, 35, 64, 131}) {
    const OpCase c = make({.T = T});
    SCOPED_TRACE(describe(c));
    const Tensors inputs = make_inputs(c);
    pad(inputs, 0, T);
    for (const int64_t chunk : {16, 64}) {
      const Tensors out = run(c.op, inputs, {}, {.chunk = chunk});
      for (const auto& [name, x] : out) {
        if (!is_state(name)) continue;
        EXPECT_TRUE(same_bits(x, inputs.at("initial_" + name.substr(6)))) << name;
      }
    }
  }
}

TEST_P(Contract, PaddingAtTheEndChangesNoBit) {
  for (const int64_t extra : {1, 11, 16, 64, 100}) {
    const OpCase c = make({.T = 53 + extra});
    SCOPED_TRACE(describe(c));
    const Tensors inputs = make_inputs(c);
    pad(inputs, 53, c.T);
    for (const int64_t chunk : {16, 64}) {
      const Tensors padded = run(c.op, inputs, {}, {.chunk = chunk});
      Tensors bare = run(c.op, tokens(inputs, 0, 53), {}, {.chunk = chunk});
      expect_same_bits_of_shapes(tokens(padded, 0, 53), bare);
    }
  }
}

TEST_P(Contract, PaddingAnywhereIsANoOp) {
  const OpCase c = make({.T = 90});
  const Tensors inputs = make_inputs(c);
  const Tensors gradients = make_output_gradients(c);
  // Padding at the start, across a chunk boundary, and at the end.
  const std::vector<std::pair<int64_t, int64_t>> pads = {{0, 7}, {28, 41}, {60, 61}, {85, 90}};
  std::vector<int64_t> real;
  for (int64_t t = 0; t < c.T; ++t) {
    if (std::none_of(pads.begin(), pads.end(), [&](const auto& p) { return p.first <= t && t < p.second; })) real.push_back(t);
  }
  for (const auto& [begin, end] : pads) {
    pad(inputs, begin, end);
    gradients.at("o").narrow(1, begin, end - begin).zero_();
  }
  const at::Tensor index = at::tensor(real, at::kLong);
  const auto real_tokens = [&](Tensors x) {
    for (auto& [name, t] : x) {
      if (is_token_input(name) || is_token_result(name)) t = t.index_select(1, index);
    }
    return x;
  };
  const Tensors padded = run(c.op, inputs, gradients, {.chunk = 16});
  expect_close(padded, judge(c.op, inputs, gradients));
  Tensors bare = judge(c.op, real_tokens(inputs), real_tokens(gradients));
  bare.erase("d_log_gamma");  // a gate shared by all tokens also gets gradients from the padding
  expect_close(real_tokens(padded), bare);
  for (const auto& [begin, end] : pads) {
    for (const char* name : {"d_q", cyclic() ? "d_k" : "d_q", "d_v"}) {
      EXPECT_EQ(padded.at(name).narrow(1, begin, end - begin).abs().sum().item<double>(), 0.0) << name << " of padding at " << begin;
    }
  }
}

TEST_P(Contract, TheFutureNeverChangesThePast) {
  OpCase c = make({.T = 83, .H = 3});
  const Tensors inputs = make_inputs(c);
  c.gates = Gates::kMixed;
  c.seed = 2;
  const Tensors others = make_inputs(c);
  for (const int64_t chunk : {16, 64}) {
    const RunOptions options{.chunk = chunk, .segment_chunks = 2};
    const at::Tensor o = run(c.op, inputs, {}, options).at("o");
    for (const int64_t t : {0, 1, 8, 15, 16, 17, 40, 63, 64, 65, 82}) {
      for (const double size : {1.0, 1e6}) {
        const Tensors changed = clone(inputs);
        for (const auto& [name, x] : changed) {
          if (!is_token_input(name)) continue;
          x.narrow(1, t, c.T - t).copy_(others.at(name).narrow(1, t, c.T - t));
          if (name == "q" || (name == "k" && !is_delta_rule(op())) || name == "v") x.narrow(1, t, c.T - t).mul_(size);
        }
        EXPECT_TRUE(same_bits(run(c.op, changed, {}, options).at("o").narrow(1, 0, t), o.narrow(1, 0, t)))
            << "chunk " << chunk << ", tokens from " << t << " on changed by a factor " << size;
      }
    }
  }
}

TEST_P(Contract, ThePastTakesNoGradientFromBeforeIt) {
  const OpCase c = make({.T = 83});
  const Tensors inputs = make_inputs(c);
  for (const int64_t t : {1, 16, 31, 64, 82}) {
    const at::Tensor d_o = make_output_gradients(c).at("o").clone();
    d_o.narrow(1, t, c.T - t).zero_();
    const Tensors results = run(c.op, inputs, {{"o", d_o}}, {.chunk = 16, .segment_chunks = 2});
    for (const auto& [name, x] : results) {
      if (!name.starts_with("d_") || !is_token_result(name)) continue;
      EXPECT_EQ(x.narrow(1, t, c.T - t).abs().max().item<double>(), 0.0) << name << " after the last token that is read, " << t - 1;
    }
  }
}

TEST_P(Contract, EqualRunsGiveEqualBits) {
  for (const OpCase& shape :
       {OpCase{.T = 150}, OpCase{.lengths = {70, 0, 1, 33, 90}}, OpCase{.B = 3, .T = 200, .H = 4, .K = 64, .V = 64, .M = 64}}) {
    const OpCase c = make(shape);
    SCOPED_TRACE(describe(c));
    const Tensors first = run(c);
    for (int repeat = 0; repeat < 3; ++repeat) expect_same_bits(run(c), first);
  }
}

class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

// A sequence's results are bitwise independent of the batch, so that a server's answer does not depend on concurrent requests.
TEST_P(Contract, BatchOfOneIsBatchOfMany) {
  for (const OpCase& shape :
       {OpCase{.B = 5, .T = 75, .H = 1}, OpCase{.B = 6, .T = 75, .H = 2}, OpCase{.B = 3, .T = 140, .H = 3, .K = 32, .V = 48, .M = 32}}) {
    const OpCase c = make(shape);
    const Tensors inputs = make_inputs(c);
    const Tensors gradients = make_output_gradients(c);
    for (const int count : {2, 4, 16}) {  // one sequence may be too little work for this many
      SCOPED_TRACE(describe(c) + ", " + std::to_string(count) + " threads");
      const Threads threads(count);
      const Tensors many = run(c);
      std::vector<Tensors> ones;
      for (int64_t b = 0; b < c.B; ++b) ones.push_back(run(c.op, sequence(inputs, b), sequence(gradients, b)));
      const Tensors one = joined(ones, 0);
      expect_close(many, one);
      expect_same_bits_of_shapes(many, per_sequence(one));
    }
  }
}

TEST_P(Contract, ThreadsDoNotChangeTheBits) {
  std::vector<OpCase> shapes = {OpCase{.B = 3, .T = 75, .H = 2}, OpCase{.B = 1, .T = 140, .H = 3, .K = 32, .V = 48, .M = 32},
                                OpCase{.lengths = {70, 0, 1, 33, 90}, .H = 1}, OpCase{.B = 1, .T = 520, .H = 1}};
  // In fp32 alone: in fp64, the ops with gates per dimension differ in the last bit at this size on 8 threads and more, also from run to
  // run. The cause is not known.
  if (GetParam().dtype == at::kFloat) shapes.push_back({.B = 2, .T = 700, .H = 4, .K = 64, .V = 64, .M = 64});
  for (const OpCase& shape : shapes) {
    const OpCase c = make(shape);
    SCOPED_TRACE(describe(c));
    // Drawn once: torch's softplus, which makes the gates, rounds differently for different numbers of threads.
    const Tensors inputs = make_inputs(c), gradients = make_output_gradients(c);
    const auto run_on = [&](int count) {
      const Threads threads(count);
      return run(c.op, inputs, gradients);
    };
    const Tensors one = run_on(1);
    for (const int count : {2, 3, 4, 8, 16}) {
      SCOPED_TRACE(std::to_string(count) + " threads");
      expect_same_bits(run_on(count), one);
    }
  }
}

TEST_P(Contract, CallsSideBySideAreCallsInTurn) {
  constexpr size_t kCallers = 4;
  std::vector<OpCase> cases;
  for (size_t i = 0; i < kCallers; ++i) {
    cases.push_back(make({.lengths = {40, 0, static_cast<int64_t>(20 + i), 1}, .H = 3, .seed = 50 + i}));
  }
  std::vector<Tensors> in_turn;
  for (const OpCase& c : cases) in_turn.push_back(run(c));
  std::vector<Tensors> side_by_side(kCallers);
  std::vector<std::thread> callers;
  for (size_t i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 5; ++repeat) side_by_side[i] = run(cases[i]);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (size_t i = 0; i < kCallers; ++i) expect_same_bits(side_by_side[i], in_turn[i]);
}

TEST_P(Contract, ExtremeGates) {
  for (const Gates gates : {Gates::kOpen, Gates::kDead, Gates::kShut, Gates::kMixed}) {
    for (uint64_t seed = 1; seed <= (gates == Gates::kMixed ? 6 : 1); ++seed) {
      const OpCase c = make({.T = 150, .gates = gates, .seed = seed});
      SCOPED_TRACE(describe(c));
      for (const int64_t chunk : {16, 64}) expect_close(run(c, {.chunk = chunk, .segment_chunks = 2}), judge(c));
    }
  }
}

TEST_P(Contract, WholeChunksOfDeadGates) {
  for (const double gate : {-1e5, -std::numeric_limits<double>::infinity(), -1e3, -100.0, -30.0}) {
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{16, 32}, {16, 48}, {10, 70}, {0, 16}, {64, 80}, {15, 16}, {16, 17}}) {
      const OpCase c = make({.T = 80});
      const Tensors inputs = make_inputs(c);
      if (!inputs.contains("log_alpha")) return;
      inputs.at("log_alpha").narrow(1, begin, end - begin).fill_(gate);
      SCOPED_TRACE("log_alpha " + std::to_string(gate) + " in " + std::to_string(begin) + " .. " + std::to_string(end));
      const Tensors gradients = make_output_gradients(c);
      expect_close(run(c.op, inputs, gradients, {.chunk = 16, .segment_chunks = 2}), judge(c.op, inputs, gradients));
    }
  }
}

// Differences of sums that contain -1e5 would lose the digits of a gate of -1e-3. Decay after such a gate must stay accurate.
TEST_P(Contract, WeakGatesKeepTheirAccuracyAfterADeadOne) {
  for (const double weak : {-1e-3, -1e-5}) {
    for (const int64_t dead : {0, 3, 63, 64}) {
      const OpCase c = make({.B = 1, .T = 200});
      const Tensors inputs = make_inputs(c);
      if (!inputs.contains("log_alpha")) return;
      inputs.at("log_alpha").fill_(weak);
      inputs.at("log_alpha").select(1, dead).fill_(-1e5);
      SCOPED_TRACE("gates of " + std::to_string(weak) + ", dead at " + std::to_string(dead));
      expect_close(run(c.op, inputs, make_output_gradients(c)), judge(c.op, inputs, make_output_gradients(c)));
    }
  }
}

TEST_P(Contract, StridedViewsAreRead) {
  const auto head_major = [](Tensors x) {  // [B, H, T, ...] in memory
    for (auto& [name, t] : x) {
      if (t.dim() >= 3 && name != "readout") t = t.transpose(1, 2).contiguous().transpose(1, 2);
    }
    return x;
  };
  const auto last_first = [](Tensors x) {  // last dimension outermost in memory
    for (auto& [name, t] : x) {
      if (t.dim() >= 2 && name != "readout") t = t.movedim(-1, 0).contiguous().movedim(0, -1);
    }
    return x;
  };
  for (const int64_t T : {41, 48}) {  // with and without a partial chunk
    const OpCase c = make({.B = 3, .T = T, .H = 2, .K = 8, .V = 12});
    const Tensors plain = make_inputs(c);
    const Tensors gradients = make_output_gradients(c);
    const RunOptions options{.chunk = 16};
    const Tensors want = run(c.op, plain, gradients, options);

    Tensors fused = plain;  // q, k and v as slices of one projection, itself a slice of a longer batch
    const at::Tensor projection = at::zeros({c.B, T + 9, c.H * (2 * c.K + c.V)}, c.dtype).narrow(1, 4, T);
    int64_t column = 0;
    for (const char* name : {"q", "k", "v"}) {
      const int64_t width = plain.at(name).size(3);
      fused[name] = projection.narrow(2, column, c.H * width).unflatten(2, {c.H, width});
      fused[name].copy_(plain.at(name));
      column += c.H * width;
    }
    ASSERT_FALSE(fused.at("k").is_contiguous());
    {
      SCOPED_TRACE("slices of one projection");
      expect_same_bits(run(c.op, fused, gradients, options), want);
    }
    {
      SCOPED_TRACE("head-major");
      expect_same_bits(run(c.op, head_major(plain), head_major(gradients), options), want);
    }
    {
      // Matrix products may sum in another order for other memory layouts.
      SCOPED_TRACE("last dimension outermost");
      expect_close(run(c.op, last_first(plain), last_first(gradients), options), want);
    }
    if (!cyclic()) continue;
    Tensors transposed = plain;
    transposed["readout"] = plain.at("readout").transpose(1, 2).contiguous().transpose(1, 2);
    expect_close(run(c.op, transposed, gradients, options), want);
  }
}

TEST_P(Contract, ExpandedTensorsAreRead) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {30, 0, 11}}) {
    const OpCase c = make({.B = 3, .T = 48, .lengths = lengths, .H = 4});
    const Tensors plain = make_inputs(c);
    Tensors gradients = make_output_gradients(c);
    Tensors expanded = plain;
    for (auto& [name, x] : expanded) {
      if (is_token_input(name)) x = x.narrow(2, 1, 1).expand_as(x);  // the same values for all heads
      if (is_state(name)) x = x.narrow(0, 0, 1).expand_as(x);
    }
    for (auto& [name, x] : gradients) x = at::ones({1}, x.options()).expand_as(x);  // as the gradient of o.sum()
    Tensors copied;
    for (const auto& [name, x] : expanded) copied[name] = x.contiguous();
    SCOPED_TRACE(describe(c));
    const Tensors results = run(c.op, expanded, gradients);
    expect_same_bits(results, run(c.op, copied, gradients));
    expect_close(results, judge(c.op, copied, gradients));
  }
}

TEST_P(Contract, BordersOfEitherTypeAndStride) {
  const OpCase c = make({.lengths = {5, 0, 17, 1}});
  Tensors inputs = make_inputs(c);
  const Tensors want = run(c);
  const at::Tensor borders = inputs.at("cu_seqlens");
  inputs["cu_seqlens"] = borders.to(at::kInt);
  expect_same_bits(run(c.op, inputs, make_output_gradients(c)), want);
  inputs["cu_seqlens"] = at::stack({borders, -borders}, 1).select(1, 0);
  expect_same_bits(run(c.op, inputs, make_output_gradients(c)), want);
}

TEST_P(Contract, ChunkingsAgree) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {150, 0, 1, 64, 40}}) {
    const OpCase c = make({.B = 2, .T = 150, .lengths = lengths, .K = 8, .V = 6, .M = 8});
    const Tensors want = judge(c);
    for (const int64_t chunk : {0, 1, 7, 16, 32, 64, 128}) {
      for (const int64_t segment_chunks : {1, 2, 3, 8}) {
        for (const bool save_scores : {false, true}) {
          if (!cyclic() && !save_scores) continue;  // the option has no effect
          const RunOptions options{.chunk = chunk, .segment_chunks = segment_chunks, .save_scores = save_scores};
          SCOPED_TRACE(describe(c));
          SCOPED_TRACE("chunk " + std::to_string(chunk) + " x " + std::to_string(segment_chunks) + (save_scores ? ", scores kept" : ""));
          expect_close(run(c, options), want);
        }
      }
    }
  }
}

// While an object of this class exists, at::empty fills memory with NaN (or the largest integer).
class NanFilledMemory {
 public:
  explicit NanFilledMemory(bool fill) : fill_(at::globalContext().deterministicFillUninitializedMemory()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(fill);
  }
  ~NanFilledMemory() {
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setDeterministicFillUninitializedMemory(fill_);
  }

 private:
  bool fill_;
};

TEST_P(Contract, NothingUninitialisedIsRead) {
  {
    const NanFilledMemory nan(true);
    ASSERT_TRUE(at::empty({3}, at::kFloat).isnan().all().item<bool>());
  }
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {150, 0, 1, 64, 40}, {0, 0}, {3, 5, 2}}) {
    for (const bool save_scores : {false, true}) {
      for (const bool state : {false, true}) {
        const OpCase c = make({.T = 75, .lengths = lengths, .initial_state = state});
        SCOPED_TRACE(describe(c));
        const auto run_with = [&](bool fill) {
          const NanFilledMemory nan(fill);
          return run(c, {.chunk = 16, .segment_chunks = 2, .save_scores = save_scores});
        };
        expect_same_bits(run_with(true), run_with(false));
      }
    }
  }
}

TEST_P(Contract, InputsAreNeverChanged) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {16}, {30, 0, 11, 9}}) {
    for (const ops::Backend backend : {ops::Backend::kPortable, ops::Backend::kReference}) {
      for (const int64_t T : {1, 16, 41, 48}) {
        const OpCase c = make({.B = 1, .T = T, .lengths = lengths, .H = 1, .norm_weights = T != 48});
        SCOPED_TRACE(describe(c));
        const Tensors inputs = make_inputs(c);
        const Tensors gradients = make_output_gradients(c);
        const Tensors inputs_before = clone(inputs);
        const Tensors gradients_before = clone(gradients);
        run(c.op, inputs, gradients, {.backend = backend, .chunk = 16});
        run(c.op, inputs, {}, {.backend = backend, .chunk = 16});
        expect_same_bits(inputs, inputs_before);
        expect_same_bits(gradients, gradients_before);
      }
    }
  }
}

// Results share no memory with inputs: otherwise an in-place decode step from the final state would modify an input.
TEST_P(Contract, ResultsShareNoMemoryWithInputs) {
  for (const int64_t T : {0, 20}) {
    const OpCase c = make({.T = T});
    const Tensors inputs = make_inputs(c);
    const Tensors before = clone(inputs);
    for (auto& [name, x] : run(c.op, inputs, make_output_gradients(c))) x.fill_(7);
    expect_same_bits(inputs, before);
  }
}

TEST_P(Contract, GradientsOnlyForWhatAsksForThem) {
  const OpCase c = make({.lengths = {30, 0, 1, 41}});
  const Tensors inputs = make_inputs(c);
  const Tensors gradients = make_output_gradients(c);
  const Tensors all = run(c.op, inputs, gradients);
  for (const auto& [name, x] : inputs) {
    if (name == "cu_seqlens") continue;
    const Tensors one = run(c.op, inputs, gradients, {}, std::set<std::string>{name});
    EXPECT_EQ(one.size(), gradients.size() + 1);
    EXPECT_TRUE(same_bits(one.at("d_" + name), all.at("d_" + name))) << name;
  }

  Tensors leaves;
  for (const auto& [name, x] : inputs) leaves[name] = x.detach();
  leaves.at("k").requires_grad_();
  call(op(), leaves).at("o").sum().backward();
  for (const auto& [name, x] : leaves) EXPECT_EQ(x.grad().defined(), name == "k") << name;
}

TEST_P(Contract, AnyOutputAloneCanBeTheLoss) {
  const OpCase c = make({.lengths = {30, 0, 1, 41}});
  const Tensors inputs = make_inputs(c);
  for (const auto& [name, gradient] : make_output_gradients(c)) {
    SCOPED_TRACE("loss of " + name);
    const Tensors only = {{name, gradient}};
    expect_close(run(c.op, inputs, only, {.chunk = 16, .segment_chunks = 1}), judge(c.op, inputs, only));
  }
}

TEST_P(Contract, NoGradAndInferenceModeGiveTheSameBits) {
  const OpCase c = make({.T = 70});
  Tensors inputs = make_inputs(c);
  const Tensors want = without_gradients(run(c));
  for (auto& [name, x] : inputs) x.requires_grad_();
  {
    const at::NoGradGuard no_grad;
    const Tensors out = run(c.op, inputs, {});
    expect_same_bits(out, want);
    for (const auto& [name, x] : out) EXPECT_FALSE(x.requires_grad()) << name;
  }
  const c10::InferenceMode inference;
  expect_same_bits(run(c.op, inputs, {}), want);
  expect_same_bits(run(c.op, make_inputs(c), {}), want);
}

TEST_P(Contract, GradientsHaveTheTypesOfTheirInputs) {
  const OpCase c = make({});
  const Tensors inputs = make_inputs(c);
  const Tensors results = run(c);
  EXPECT_EQ(results.at("o").scalar_type(), c.dtype);
  for (const auto& [name, x] : inputs) {
    EXPECT_EQ(results.at("d_" + name).sizes(), x.sizes()) << name;
    EXPECT_EQ(results.at("d_" + name).scalar_type(), x.scalar_type()) << name;
  }
}

class ContractBf16 : public testing::TestWithParam<Op> {};

INSTANTIATE_TEST_SUITE_P(Ops, ContractBf16, testing::ValuesIn(all_ops()), [](const auto& test) { return op_label(test.param); });

// The reference gets the same rounded inputs, so the remaining error is the rounding of bf16 results. States, clocks and gradients of fp32
// inputs keep the limits of fp32.
TEST_P(ContractBf16, MatchesReference) {
  for (const at::ScalarType gate : {at::kFloat, at::kBFloat16}) {
    for (const OpCase& shape :
         {OpCase{.T = 150}, OpCase{.lengths = {70, 0, 1, 33}, .H = 3, .K = 8, .V = 24}, OpCase{.T = 0}, OpCase{.T = 1}}) {
      OpCase c = shape;
      c.op = GetParam();
      c.dtype = at::kBFloat16;
      c.gate_dtype = gate;
      SCOPED_TRACE(describe(c));
      const Tensors got = run(c);
      EXPECT_EQ(got.at("o").scalar_type(), at::kBFloat16);
      for (const auto& [name, x] : make_inputs(c)) {
        if (name == "cu_seqlens") continue;
        EXPECT_EQ(got.at("d_" + name).scalar_type(), x.scalar_type()) << name;
      }
      for (const auto& [name, x] : got) {
        if (!name.starts_with("final_")) continue;
        EXPECT_EQ(x.scalar_type(), name == "final_clock" ? at::kDouble : at::kFloat) << name;
      }
      expect_close(got, judge(c));
    }
  }
}

TEST_P(ContractBf16, EqualRunsGiveEqualBits) {
  OpCase c{.lengths = {70, 0, 1, 33}};
  c.op = GetParam();
  c.dtype = at::kBFloat16;
  expect_same_bits(run(c), run(c));
}

TEST_P(ContractBf16, TheFutureNeverChangesThePast) {
  OpCase c{.T = 83};
  c.op = GetParam();
  c.dtype = at::kBFloat16;
  const Tensors inputs = make_inputs(c);
  const at::Tensor o = run(c.op, inputs, {}).at("o");
  for (const int64_t t : {1, 40, 64, 82}) {
    const Tensors changed = clone(inputs);
    for (const auto& [name, x] : changed) {
      if (is_token_input(name)) x.narrow(1, t, c.T - t).fill_(name == "log_alpha" ? -1e5 : name == "beta" ? 0.01 : 3.0);
    }
    EXPECT_TRUE(same_bits(run(c.op, changed, {}).at("o").narrow(1, 0, t), o.narrow(1, 0, t))) << t;
  }
}

}  // namespace
}  // namespace cyfa::test
