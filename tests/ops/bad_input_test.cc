// Every invalid argument throws an ArgumentError that names the op, the argument, its value and what is expected; nothing is modified.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <limits>

#include "cyfa/ops/common/check.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

using Words = std::vector<std::string>;

void expect_refusal(const std::function<void()>& call, const Words& words) {
  try {
    call();
    ADD_FAILURE() << "was accepted";
  } catch (const ops::ArgumentError& error) {
    const std::string message = error.what();
    for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an ArgumentError: " << std::string(error.what()).substr(0, 300);
  }
}

std::string shape_text(const at::Tensor& x) {
  std::ostringstream out;
  out << x.sizes();
  return out.str();
}

// Argument names as used in error messages.
std::string argument_name(const std::string& name) {
  if (name == "initial_k") return "initial_state.k";
  if (name == "initial_v") return "initial_state.v";
  if (name == "initial_clock") return "initial_state.clock";
  return name;
}

class BadInput : public testing::TestWithParam<Op> {
 protected:
  Tensors good() const {
    OpCase c{.B = 2, .T = 5, .H = 3, .K = 4, .V = 6, .M = 8};
    c.op = GetParam();
    return make_inputs(c);
  }

  Tensors good_packed() const {
    OpCase c{.lengths = {2, 0, 3}, .H = 3, .K = 4, .V = 6, .M = 8};
    c.op = GetParam();
    return make_inputs(c);
  }

  void refuse(const Tensors& inputs, Words words, const RunOptions& options = {}, const char* wanted = "wanted") const {
    words.push_back(op_name(GetParam()) + ": ");
    words.push_back(wanted);
    for (const ops::Backend backend : {ops::Backend::kAuto, ops::Backend::kReference}) {
      RunOptions with = options;
      with.backend = backend;
      expect_refusal([&] { run(GetParam(), inputs, {}, with); }, words);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Ops, BadInput, testing::ValuesIn(all_ops()), [](const auto& test) { return op_label(test.param); });

TEST_P(BadInput, GoodInputsAreTaken) {
  run(GetParam(), good(), {});
  run(GetParam(), good_packed(), {});
}

TEST_P(BadInput, SizesThatDisagree) {
  for (const auto& [name, x] : good()) {
    for (int64_t dim = 0; dim < x.dim(); ++dim) {
      for (const int64_t change : {-1, 1}) {
        Tensors inputs = good();
        std::vector<int64_t> sizes = x.sizes().vec();
        sizes[static_cast<size_t>(dim)] += change;
        inputs[name] = at::zeros(sizes, x.options());
        SCOPED_TRACE(name + " " + shape_text(inputs.at(name)));
        if (name == "q" || (name == "v" && dim == 3)) {
          refuse(inputs, {});  // q and the width of v define the expected shapes, so the error names another argument
        } else if (name == "readout" && dim > 0) {
          refuse(inputs, {"readout", std::to_string(sizes[1]) + " x " + std::to_string(sizes[2])});
        } else {
          refuse(inputs, {argument_name(name), "has shape " + shape_text(inputs.at(name))});
        }
      }
    }
  }
}

TEST_P(BadInput, OtherRanks) {
  for (const auto& [name, x] : good()) {
    for (const at::Tensor& other : {x.unsqueeze(0), x.unsqueeze(-1), x.flatten(), x.flatten()[0]}) {
      if (other.dim() == x.dim()) continue;
      Tensors inputs = good();
      inputs[name] = other;
      SCOPED_TRACE(name + " " + shape_text(other));
      refuse(inputs, {argument_name(name), "has shape " + shape_text(other)});
    }
  }
}

TEST_P(BadInput, TypesThatHaveNoArithmeticHere) {
  for (const auto& [name, x] : good()) {
    for (const at::ScalarType type : {at::kHalf, at::kInt, at::kLong, at::kBool, at::kComplexFloat}) {
      Tensors inputs = good();
      inputs[name] = at::zeros(x.sizes(), x.options().dtype(type));
      SCOPED_TRACE(name + " " + c10::toString(type));
      refuse(inputs, {name == "q" ? "" : argument_name(name), std::string("has type ") + (name == "q" ? "" : c10::toString(type))});
    }
  }
}

TEST_P(BadInput, TypesThatDisagree) {
  for (const char* name : {"k", "v"}) {
    for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
      Tensors inputs = good();
      inputs[name] = inputs.at(name).to(type);
      refuse(inputs, {name, std::string("has type ") + c10::toString(type), "Float", "q"});
    }
  }
  for (const auto& [name, x] : good()) {
    if (!is_state(name) || name == "initial_clock") continue;
    Tensors inputs = good();
    inputs[name] = x.to(at::kBFloat16);
    refuse(inputs, {argument_name(name), "has type BFloat16", "Float"});
    inputs = good();
    for (const char* wide : {"q", "k", "v"}) inputs[wide] = inputs.at(wide).to(at::kDouble);
    refuse(inputs, {"initial_state", "has type Float", "Double"});
  }
}

TEST_P(BadInput, AnotherDevice) {
  for (const auto& [name, x] : good()) {
    Tensors inputs = good();
    inputs[name] = x.to(at::kMeta);
    SCOPED_TRACE(name);
    refuse(inputs, {name == "q" ? "is on cpu" : argument_name(name) + " is on meta", name == "q" ? "meta" : "cpu"});
  }
}

TEST_P(BadInput, MissingTensors) {
  for (const auto& [name, x] : good()) {
    Tensors inputs = good();
    inputs[name] = at::Tensor();
    SCOPED_TRACE(name);
    refuse(inputs, {argument_name(name), "is missing"});
  }
}

TEST_P(BadInput, ZeroWidths) {
  for (const auto& [heads, keys, values] : {std::tuple<int64_t, int64_t, int64_t>{0, 4, 6}, {3, 0, 6}, {3, 4, 0}}) {
    OpCase c{.B = 2, .T = 5, .H = heads, .K = keys, .V = values, .M = 8, .initial_state = false};
    c.op = GetParam();
    SCOPED_TRACE(describe(c));
    refuse(make_inputs(c), {"at least 1"});
  }
}

TEST_P(BadInput, SequenceBorders) {
  struct Borders {
    std::vector<int64_t> values;
    Words words;
  };
  for (const Borders& bad : {Borders{{1, 2, 2, 5}, {"starts at 1", "wanted 0"}},
                             {{-1, 2, 2, 5}, {"starts at -1", "wanted 0"}},
                             {{0, 2, 2, 4}, {"ends at 4", "T = 5"}},
                             {{0, 2, 2, 6}, {"ends at 6", "T = 5"}},
                             {{0, 3, 2, 5}, {"falls from 3 to 2"}},
                             {{0, 7, 2, 5}, {"falls from 7 to 2"}},
                             {{0, -2, 2, 5}, {"falls from 0 to -2"}},
                             {{0, std::numeric_limits<int64_t>::max(), 2, 5}, {"falls from"}}}) {
    Tensors inputs = good_packed();
    inputs["cu_seqlens"] = at::tensor(bad.values, at::kLong);
    SCOPED_TRACE(at::IntArrayRef(bad.values));
    Words words = bad.words;
    words.push_back("cu_seqlens");
    refuse(inputs, words);
  }
  const at::Tensor borders = good_packed().at("cu_seqlens");
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kShort, at::kBool}) {
    Tensors inputs = good_packed();
    inputs["cu_seqlens"] = borders.to(type);
    refuse(inputs, {"cu_seqlens", std::string("has type ") + c10::toString(type)});
  }
  Tensors inputs = good_packed();
  inputs["cu_seqlens"] = borders.view({2, 2});
  refuse(inputs, {"cu_seqlens", "has shape [2, 2]"});
}

TEST_P(BadInput, BordersWithoutElements) {
  OpCase c{.lengths = {5}, .H = 3, .K = 4, .V = 6, .M = 8, .initial_state = false};
  c.op = GetParam();
  Tensors inputs = make_inputs(c);
  inputs["cu_seqlens"] = at::empty({0}, at::kLong);
  refuse(inputs, {"cu_seqlens", "has shape [0]"});
  inputs["cu_seqlens"] = at::zeros({1}, at::kLong);  // no sequences, but five tokens
  refuse(inputs, {"cu_seqlens", "ends at 0", "T = 5"});
  inputs["cu_seqlens"] = at::scalar_tensor(5, at::kLong);
  refuse(inputs, {"cu_seqlens", "has shape []"});
  inputs["cu_seqlens"] = at::Tensor();  // given but undefined; this is not the same as absent
  refuse(inputs, {"cu_seqlens", "is missing"});
}

TEST_P(BadInput, BordersOfABatch) {
  OpCase c{.B = 2, .T = 5, .initial_state = false};
  c.op = GetParam();
  Tensors inputs = make_inputs(c);
  inputs["cu_seqlens"] = at::tensor({0, 5}, at::kLong);
  refuse(inputs, {"cu_seqlens", "B = 1", "B is 2"}, {}, "needs");
}

TEST_P(BadInput, BordersOnAnotherDevice) {
  Tensors inputs = good_packed();
  inputs["cu_seqlens"] = inputs.at("cu_seqlens").to(at::kMeta);
  refuse(inputs, {"cu_seqlens", "meta"});
}

TEST_P(BadInput, GatesThatGrowOrAreNoNumbers) {
  const double bad[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e-6, 3.0};
  for (const double value : bad) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const char* name : {"log_alpha", "log_gamma"}) {
        Tensors inputs = good();
        if (!inputs.contains(name)) continue;
        inputs[name] = inputs.at(name).to(type);
        inputs.at(name).flatten()[inputs.at(name).numel() - 2] = value;
        SCOPED_TRACE(value);
        refuse(inputs, {name, std::to_string(value).substr(0, 3), "at most 0"});
      }
    }
  }
}

TEST_P(BadInput, Options) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  refuse(good(), {"chunk", "-1"}, {.chunk = -1});
  refuse(good(), {"segment_chunks", "-3"}, {.segment_chunks = -3});
  refuse(good(), {"scale", "nan"}, {.scale = nan});
  refuse(good(), {"scale", "inf"}, {.scale = infinity});
  refuse(good(), {"chunk", "1099511627776"}, {.chunk = int64_t{1} << 40});
  if (GetParam() != Op::kCyclicFlow) return;
  refuse(good(), {"norm_eps", "-1"}, {.norm_eps = -1.0});
  refuse(good(), {"norm_eps", "nan"}, {.norm_eps = nan});
}

// chunk * segment_chunks must not overflow. Runs in a subprocess, because with an overflow the segment planning would never end.
TEST_P(BadInput, SegmentsBeyondCounting) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int64_t count : {int64_t{1} << 60, std::numeric_limits<int64_t>::max()}) {
    const auto call = [&] {
      ::alarm(3);
      try {
        run(GetParam(), good(), {}, {.segment_chunks = count});
      } catch (const ops::ArgumentError&) {
      }
      std::_Exit(0);
    };
    EXPECT_EXIT(call(), testing::ExitedWithCode(0), "") << count;
  }
}

// SizesThatDisagree covers single wrong dimensions. Here all parts of the state are consistent with each other but not with the inputs.
TEST_P(BadInput, TheStateOfAnotherModel) {
  for (const OpCase& other : {OpCase{.B = 2, .H = 3, .K = 8, .V = 6, .M = 8}, OpCase{.B = 2, .H = 3, .K = 4, .V = 4, .M = 8},
                              OpCase{.B = 2, .H = 3, .K = 4, .V = 6, .M = 16}, OpCase{.B = 2, .H = 2, .K = 4, .V = 6, .M = 8},
                              OpCase{.B = 3, .H = 3, .K = 4, .V = 6, .M = 8}}) {
    if (GetParam() != Op::kCyclicFlow && other.M == 16) continue;
    OpCase c = other;
    c.op = GetParam();
    Tensors inputs = good();
    for (const auto& [name, x] : make_inputs(c)) {
      if (is_state(name)) inputs[name] = x;
    }
    SCOPED_TRACE(describe(c));
    refuse(inputs, {"initial_state", "has shape"});
  }
}

TEST(BadInputCyclicFlow, AnEvenNumberOfActiveSlots) {
  for (const int64_t m : {0, 2, 8}) {
    Tensors inputs = make_inputs({.H = 3, .initial_state = false});
    inputs["readout"] = at::zeros({3, m, m});
    const std::string size = std::to_string(m) + " x " + std::to_string(m);
    expect_refusal([&] { run(Op::kCyclicFlow, inputs, {}); }, {"cyclic_flow: ", "readout", size, "odd"});
  }
}

TEST(BadInputCyclicFlow, HalfAState) {
  for (const char* absent : {"initial_k", "initial_v", "initial_clock"}) {
    Tensors inputs = make_inputs({});
    inputs.erase(absent);
    expect_refusal([&] { run(Op::kCyclicFlow, inputs, {}); }, {"cyclic_flow: ", argument_name(absent), "is missing", "wanted"});
  }
}

TEST(BadInputCyclicFlow, BackendsAreAskedAboutGoodInputsOnly) {
  Tensors inputs = make_inputs({});
  inputs["k"] = at::Tensor();
  expect_refusal([&] { ops::cyclic_flow_backends(cyclic_flow_inputs(inputs)); }, {"cyclic_flow: ", "k is missing"});
}

TEST(BadInputCyclicFlow, ReadoutTable) {
  const auto refuse = [](const at::Tensor& readout, Words words) {
    words.insert(words.end(), {"cyclic_flow_readout_table: ", "wanted"});
    expect_refusal([&] { ops::cyclic_flow_readout_table(readout); }, words);
  };
  refuse(at::zeros({2, 4, 4}), {"4", "odd"});
  refuse(at::zeros({2, 0, 0}), {"0", "odd"});
  refuse(at::zeros({2, 5, 7}), {"readout", "has shape [2, 5, 7]"});
  refuse(at::zeros({5, 5}), {"readout", "has shape [5, 5]"});
  refuse(at::zeros({2, 5, 5}, at::kInt), {"readout", "has type Int"});
  refuse(at::Tensor(), {"readout", "is missing"});
}

// Decode steps

class BadStep : public testing::Test {
 protected:
  Tensors good() const {
    Tensors x = make_inputs({.B = 2, .T = 1, .H = 3, .K = 4, .V = 6, .M = 8});
    for (auto& [name, t] : x) {
      if (is_token_input(name)) t = t.select(1, 0).contiguous();
    }
    x["readout_table"] = ops::cyclic_flow_readout_table(x.at("readout"));
    x.erase("readout");
    return x;
  }

  static std::string name_in_step(const std::string& name) { return is_state(name) ? "state." + name.substr(8) : name; }

  static void step(const Tensors& x, const RunOptions& options = {}) {
    const auto maybe = [&](const char* name) { return x.contains(name) ? std::optional(x.at(name)) : std::nullopt; };
    ops::cyclic_flow_step({x.at("q"), x.at("k"), x.at("v"), x.at("log_alpha"), x.at("delta"), x.at("beta"), x.at("readout_table"),
                           maybe("q_norm_weight"), maybe("k_norm_weight")},
                          {x.at("initial_k"), x.at("initial_v"), x.at("initial_clock")}, options);
  }

  // Throws, and leaves every tensor bitwise unchanged: a state must not be partially updated.
  static void refuse(const Tensors& x, Words words, const RunOptions& options = {}) {
    Tensors before;
    for (const auto& [name, t] : x) before[name] = t.defined() && t.is_cpu() ? t.clone() : t;
    words.insert(words.end(), {"cyclic_flow_step: ", "wanted"});
    expect_refusal([&] { step(x, options); }, words);
    for (const auto& [name, t] : x) {
      if (!t.defined() || !t.is_cpu()) continue;
      EXPECT_TRUE(same_bits(t, before.at(name))) << name;
    }
  }
};

TEST_F(BadStep, GoodInputsAreTaken) { step(good()); }

TEST_F(BadStep, SizesThatDisagree) {
  for (const auto& [name, x] : good()) {
    for (int64_t dim = 0; dim < x.dim(); ++dim) {
      for (const int64_t change : {-1, 1}) {
        Tensors inputs = good();
        std::vector<int64_t> sizes = x.sizes().vec();
        sizes[static_cast<size_t>(dim)] += change;
        inputs[name] = at::zeros(sizes, x.options());
        SCOPED_TRACE(name + " " + shape_text(inputs.at(name)));
        const bool measure = name == "q" || (name == "v" && dim == 2);
        refuse(inputs, measure ? Words{} : Words{name_in_step(name), "has shape " + shape_text(inputs.at(name))});
      }
    }
  }
}

TEST_F(BadStep, OtherRanks) {
  for (const auto& [name, x] : good()) {
    for (const at::Tensor& other : {x.unsqueeze(0), x.flatten(), x.flatten()[0]}) {
      if (other.dim() == x.dim()) continue;
      Tensors inputs = good();
      inputs[name] = other.clone();
      SCOPED_TRACE(name + " " + shape_text(other));
      refuse(inputs, {name_in_step(name), "has shape " + shape_text(other)});
    }
  }
}

TEST_F(BadStep, Types) {
  for (const auto& [name, x] : good()) {
    for (const at::ScalarType type : {at::kHalf, at::kInt, at::kBool}) {
      Tensors inputs = good();
      inputs[name] = at::zeros(x.sizes(), x.options().dtype(type));
      SCOPED_TRACE(name + " " + c10::toString(type));
      refuse(inputs, {name_in_step(name), std::string("has type ") + c10::toString(type)});
    }
  }
  for (const auto& [name, type] : {std::pair<const char*, at::ScalarType>{"initial_k", at::kDouble},
                                   {"initial_v", at::kDouble},
                                   {"initial_v", at::kBFloat16},
                                   {"initial_clock", at::kFloat}}) {
    Tensors inputs = good();
    inputs[name] = inputs.at(name).to(type);
    refuse(inputs, {name_in_step(name), std::string("has type ") + c10::toString(type)});
  }
  Tensors two_types = good();
  two_types["initial_k"] = two_types.at("initial_k").to(at::kBFloat16);
  refuse(two_types, {"state.v has type Float", "state.k"});
}

TEST_F(BadStep, AnotherDevice) {
  for (const auto& [name, x] : good()) {
    Tensors inputs = good();
    inputs[name] = x.to(at::kMeta);
    SCOPED_TRACE(name);
    refuse(inputs, {name == "q" ? "is on cpu" : name_in_step(name) + " is on meta", name == "q" ? "meta" : "cpu"});
  }
}

TEST_F(BadStep, MissingTensors) {
  for (const auto& [name, x] : good()) {
    Tensors inputs = good();
    inputs[name] = at::Tensor();
    SCOPED_TRACE(name);
    refuse(inputs, {name_in_step(name), "is missing"});
  }
}

TEST_F(BadStep, StatesThatAreViews) {
  for (const char* name : {"initial_k", "initial_v", "initial_clock"}) {
    Tensors inputs = good();
    inputs[name] = inputs.at(name).transpose(-1, -2).contiguous().transpose(-1, -2);
    ASSERT_FALSE(inputs.at(name).is_contiguous());
    SCOPED_TRACE(name);
    refuse(inputs, {name_in_step(name), "strided view", "contiguous"});
    inputs = good();
    inputs[name] = inputs.at(name).narrow(0, 0, 1).expand_as(inputs.at(name));
    refuse(inputs, {name_in_step(name), "strided view", "contiguous"});
  }
}

TEST_F(BadStep, GatesThatGrowOrAreNoNumbers) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), 0.5}) {
    Tensors inputs = good();
    inputs.at("log_alpha")[1][2] = value;
    refuse(inputs, {"log_alpha", std::to_string(value).substr(0, 3), "at most 0"});
  }
}

TEST_F(BadStep, AnOddTable) {
  Tensors inputs = good();
  inputs["readout_table"] = at::zeros({3, 7, 7});
  refuse(inputs, {"readout_table", "7", "even"});
}

TEST_F(BadStep, Options) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refuse(good(), {"scale", "nan"}, {.scale = nan});
  refuse(good(), {"norm_eps", "-1"}, {.norm_eps = -1.0});
  refuse(good(), {"norm_eps", "nan"}, {.norm_eps = nan});
}

TEST_F(BadStep, ZeroWidths) {
  for (const auto& [heads, keys, values] : {std::tuple<int64_t, int64_t, int64_t>{0, 4, 6}, {3, 0, 6}, {3, 4, 0}}) {
    Tensors x = make_inputs({.B = 2, .T = 1, .H = heads, .K = keys, .V = values, .M = 8});
    for (auto& [name, t] : x) {
      if (is_token_input(name)) t = t.select(1, 0).contiguous();
    }
    x["readout_table"] = at::zeros({heads, 8, 8});
    x.erase("readout");
    SCOPED_TRACE(std::to_string(heads) + " x " + std::to_string(keys) + " x " + std::to_string(values));
    refuse(x, {"at least 1"});
  }
}

}  // namespace
}  // namespace cyfa::test
