// Every op of torch.ops.cyfa, public or private, called through the dispatcher with arguments that are wrong in many ways: lists of the
// wrong length, missing tensors, other shapes, types, layouts and devices, impossible numbers. A call may succeed or throw, never crash.
// The ops and the types of their arguments come from the dispatcher, so a new op is covered without a change here, once it has a good call.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "cyfa/ops/common/check.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

using at::Tensor;
using c10::IValue;
using Arguments = std::map<std::string, IValue>;  // by name; an absent one has its default, or is None

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.starts_with("cyfa::")) names.push_back(name.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

c10::OperatorHandle handle_of(const std::string& name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), ""); }

std::vector<IValue> call_boxed(const std::string& name, const Arguments& arguments) {
  const c10::OperatorHandle op = handle_of(name);
  std::vector<IValue> stack;
  for (const c10::Argument& a : op.schema().arguments()) {
    const auto given = arguments.find(a.name());
    stack.push_back(given != arguments.end() ? given->second : a.default_value().value_or(IValue()));
  }
  op.callBoxed(stack);
  return stack;
}

IValue list_of(const std::vector<Tensor>& x) { return IValue(c10::List<Tensor>(x)); }
IValue optionals_of(const std::vector<Tensor>& x) {
  c10::List<std::optional<Tensor>> list;
  for (const Tensor& t : x) list.push_back(t.defined() ? std::optional(t) : std::nullopt);
  return IValue(list);
}
IValue ints_of(const std::vector<int64_t>& x) { return IValue(x); }

// A call of the op that is valid.
Arguments good_call(const std::string& name, uint64_t seed) {
  const bool packed = seed % 3 == 0;
  const auto inputs_of = [&](Op op, bool step) {
    OpCase c{.op = op, .T = step ? 1 : 9, .seed = seed};
    if (packed && !step) c.lengths = {4, 0, 5};
    return make_inputs(c);
  };
  Arguments call;
  if (name == "cyfa::cyclic_flow_readout_table") return {{"readout", inputs_of(Op::kCyclicFlow, false).at("readout")}};
  if (name.starts_with("cyfa::_cyclic_flow_")) {
    const Tensors all = inputs_of(Op::kCyclicFlow, false);
    const auto [tensors, places] = packed_inputs(all);
    call = {{"inputs", list_of(tensors)},
            {"places", ints_of(places)},
            {"scale", 0.25},
            {"norm_eps", 1e-6},
            {"segment_size", ints_of({4, 2, 2})},
            {"keep", int64_t{2}},
            {"final_state", true},
            {"backend", seed % 2 == 0 ? "portable" : "reference"}};
    if (name == "cyfa::_cyclic_flow_forward") return call;
    const std::vector<Tensor> out = call_boxed("cyfa::_cyclic_flow_forward", call).at(0).toTensorVector();
    call["saved"] = list_of({out.begin() + 4, out.end()});
    call["grads"] = optionals_of({at::randn_like(out[0]), at::randn_like(out[1]), Tensor(), at::randn_like(out[3])});
    return call;
  }
  if (name.starts_with("cyfa::_recurrence_")) {
    const Op op = recurrences()[seed % recurrences().size()];
    const Tensors all = inputs_of(op, false);
    ops::RecurrenceInputs in = recurrence_inputs(*op.recurrence(), all);
    if (all.contains("log_gamma")) in.log_alpha = all.at("log_gamma").to(at::kDouble).expand(in.q.sizes().slice(0, 3));
    call = {{"op", op_name(op)},    {"q", in.q}, {"k", in.k}, {"v", in.v}, {"scale", 0.25}, {"size", ints_of({4, 2, 2})},
            {"backend", "portable"}};
    if (in.log_alpha) call["log_alpha"] = *in.log_alpha;
    if (in.beta) call["beta"] = *in.beta;
    if (in.initial_state) call["initial_state"] = *in.initial_state;
    if (in.cu_seqlens) call["cu_seqlens"] = *in.cu_seqlens;
    if (name == "cyfa::_recurrence_forward") return call;
    const std::vector<Tensor> out = call_boxed("cyfa::_recurrence_forward", call).at(0).toTensorVector();
    call["saved"] = list_of({out.begin() + 2, out.end()});
    call["grad_o"] = at::randn_like(out[0]);
    call["grad_final"] = at::randn_like(out[1]);
    return call;
  }
  const bool step = name.ends_with("_step");
  const std::string own = name.substr(6, name.size() - 6 - (step ? 5 : 0));
  const Tensors all = inputs_of(op_of(own), step);
  for (const auto& [argument, x] : all) call[argument] = step && is_token_input(argument) ? x.select(1, 0) : x;
  if (!step) return call;
  if (own != "cyclic_flow") {
    call["state"] = all.at("initial_state");
    return call;
  }
  call["readout_table"] = ops::cyclic_flow_readout_table(all.at("readout"));
  call["state_k"] = all.at("initial_k");
  call["state_v"] = all.at("initial_v");
  call["clock"] = all.at("initial_clock");
  return call;
}

class Wrong {
 public:
  explicit Wrong(uint64_t seed) : engine_(seed) {}

  size_t below(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(engine_); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }

  int64_t number() {
    return one_of<int64_t>({-1, 0, 1, 2, 3, 7, 13, -100, 5000, int64_t{1} << 31, int64_t{1} << 40, std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min()});
  }

  double real() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return one_of<double>({0, -1, 1e30, -1e30, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()});
  }

  std::string word() { return one_of<const char*>({"", "auto", "portable", "reference", "sm90", "la", "delta_rule", "nonsense"}); }

  // Something in place of x, which may be undefined. Torch has no answer to some changes of a tensor that is odd already: it stays.
  Tensor tensor(const Tensor& x) {
    try {
      return changed(x);
    } catch (const c10::Error&) {
      return x;
    }
  }

  Tensor changed(const Tensor& x) {
    std::vector<int64_t> sizes(below(6));
    for (int64_t& size : sizes) size = static_cast<int64_t>(below(5));
    if (!x.defined() || below(4) == 0) {
      return one_of<Tensor>(
          {Tensor(), at::randn(sizes), at::zeros({0}), at::zeros({}), at::randn(sizes).to(at::kMeta), at::ones(sizes, at::kLong)});
    }
    switch (below(12)) {
      case 0: return Tensor();
      case 1: return x.to(one_of({at::kLong, at::kHalf, at::kBool, at::kComplexFloat, at::kDouble, at::kFloat, at::kBFloat16, at::kInt}));
      case 2: return x.to(at::kMeta);
      case 3: return x.dim() == 0 ? x : x.narrow(static_cast<int64_t>(below(static_cast<size_t>(x.dim()))), 0, 0);
      case 4: return x.unsqueeze(0);
      case 5: return x.flatten();
      case 6: return x.dim() < 2 ? x.clone() : x.transpose(0, -1);
      case 7: return at::zeros({1}, x.options()).expand(x.sizes());
      case 8: return x.is_meta() ? x : x.to_sparse();
      case 9:
        return at::isFloatingType(x.scalar_type()) ? at::full_like(x, real()) : at::full_like(x, one_of<int64_t>({-5, 0, 3, 1 << 20}));
      case 10: return at::isFloatingType(x.scalar_type()) ? x.detach().clone().requires_grad_() : x.neg();
      default: {
        if (x.dim() == 0) return x.clone();
        const auto dim = static_cast<int64_t>(below(static_cast<size_t>(x.dim())));
        return below(2) == 0 ? at::cat({x, x}, dim) : x.narrow(dim, 0, std::max<int64_t>(0, x.size(dim) - 1));
      }
    }
  }

  std::vector<Tensor> tensors(std::vector<Tensor> x) {
    const size_t at = x.empty() ? 0 : below(x.size());
    switch (x.empty() ? 1 : below(6)) {
      case 0: x.erase(x.begin() + static_cast<int64_t>(at)); break;
      case 1: x.push_back(at::randn({2, 3})); break;
      case 2: x.clear(); break;
      case 3: std::swap(x[at], x.back()); break;
      default: x[at] = tensor(x[at]); break;
    }
    return x;
  }

  std::vector<int64_t> numbers(std::vector<int64_t> x) {
    switch (x.empty() ? 1 : below(4)) {
      case 0: x.pop_back(); break;
      case 1: x.push_back(number()); break;
      case 2: x.clear(); break;
      default: x[below(x.size())] = number(); break;
    }
    return x;
  }

  // A value of the argument's type.
  IValue value(const c10::Argument& argument, const IValue& now) {
    const std::string type = argument.type()->str();
    if (type == "Tensor") return tensor(now.isTensor() ? now.toTensor() : Tensor());
    if (type == "Tensor?") {
      const Tensor x = tensor(now.isTensor() ? now.toTensor() : Tensor());
      return x.defined() || below(2) == 0 ? IValue(x) : IValue();
    }
    if (type == "Tensor[]") return list_of(tensors(now.toTensorVector()));
    if (type == "Tensor?[]") {
      std::vector<Tensor> x;
      for (const std::optional<Tensor>& t : now.toOptionalTensorVector()) x.push_back(t.value_or(Tensor()));
      return optionals_of(tensors(x));
    }
    if (type == "int") return number();
    if (type == "int[]") return ints_of(numbers(now.toIntVector()));
    if (type == "float" || type == "float?") return real();
    if (type == "bool") return below(2) == 0;
    if (type == "str") return word();
    ADD_FAILURE() << "an argument of type " << type << " is not fuzzed";
    return now;
  }

 private:
  std::mt19937_64 engine_;
};

class DispatcherFuzz : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Ops, DispatcherFuzz, testing::ValuesIn(op_names()), [](const auto& test) { return test.param.substr(6); });

TEST_P(DispatcherFuzz, AWrongCallThrowsOrSucceeds) {
  constexpr uint64_t kCalls = 250;
  const std::string& name = GetParam();
  const std::vector<c10::Argument> schema = handle_of(name).schema().arguments();
  int refused = 0;
  for (uint64_t seed = 0; seed < kCalls; ++seed) {
    Wrong wrong(seed);
    Arguments call = good_call(name, seed);
    if (seed < 6) {
      EXPECT_NO_THROW(call_boxed(name, call)) << "seed " << seed;
      call = good_call(name, seed);
    }
    std::string changed;
    for (size_t changes = 1 + wrong.below(3); changes > 0; --changes) {
      const c10::Argument& argument = schema[wrong.below(schema.size())];
      const auto now = call.find(argument.name());
      call[argument.name()] = wrong.value(argument, now != call.end() ? now->second : argument.default_value().value_or(IValue()));
      changed += argument.name() + " ";
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + changed);
    try {
      call_boxed(name, call);
    } catch (const std::exception&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(kCalls) / 4) << "the calls are not wrong enough";
}

void refuse(const std::string& name, const Arguments& good, const std::string& argument, const IValue& value) {
  Arguments call = good;
  call[argument] = value;
  EXPECT_THROW(call_boxed(name, call), ops::ArgumentError) << name << " " << argument;
}

TEST(Dispatcher, PrivateOpsRefuseBadLists) {
  for (const char* name : {"cyfa::_cyclic_flow_forward", "cyfa::_cyclic_flow_backward"}) {
    const Arguments good = good_call(name, 2);
    const std::vector<Tensor> tensors = good.at("inputs").toTensorVector();
    const std::vector<int64_t> places = good.at("places").toIntVector();
    EXPECT_ANY_THROW(call_boxed(name, {{"inputs", list_of({})}}));  // by the dispatcher, which finds no tensor
    refuse(name, good, "inputs", list_of({tensors.begin(), tensors.end() - 1}));
    refuse(name, good, "places", ints_of({}));
    for (const int64_t place : {int64_t{-1}, int64_t{13}, int64_t{1} << 40, places[1]}) {
      std::vector<int64_t> other = places;
      other[0] = place;
      refuse(name, good, "places", ints_of(other));
    }
    std::vector<Tensor> missing = tensors;
    missing[3] = Tensor();
    refuse(name, good, "inputs", list_of(missing));
    for (const std::vector<int64_t>& size : std::vector<std::vector<int64_t>>{{}, {4, 2}, {0, 2, 2}, {-4, 2, 2}, {4, 0, 2}, {4, 2, -1}})
      refuse(name, good, "segment_size", ints_of(size));
    for (const int64_t keep : {-1, 3}) refuse(name, good, "keep", keep);
    for (const char* backend : {"auto", "sm90", "fast"}) refuse(name, good, "backend", backend);
  }
  const char* const backward = "cyfa::_cyclic_flow_backward";
  const Arguments good = good_call(backward, 2);
  const std::vector<Tensor> saved = good.at("saved").toTensorVector();
  refuse(backward, good, "keep", int64_t{0});
  refuse(backward, good, "keep", int64_t{1});  // not what these tensors were saved with
  refuse(backward, good, "saved", list_of({}));
  for (size_t i = 0; i < saved.size(); ++i) {
    for (const Tensor& other : {Tensor(), at::zeros({1}), saved[i].to(at::kHalf), saved[i].narrow(0, 0, 0)}) {
      if (other.defined() && other.sizes() == saved[i].sizes() && other.scalar_type() == saved[i].scalar_type()) continue;
      std::vector<Tensor> wrong = saved;
      wrong[i] = other;
      refuse(backward, good, "saved", list_of(wrong));
    }
  }
  refuse(backward, good, "grads", optionals_of({}));
  refuse(backward, good, "grads", optionals_of({at::zeros({1}), Tensor(), Tensor(), Tensor()}));
}

TEST(Dispatcher, PrivateRecurrencesRefuseBadLists) {
  for (const char* name : {"cyfa::_recurrence_forward", "cyfa::_recurrence_backward"}) {
    for (uint64_t seed = 1; seed <= recurrences().size(); ++seed) {
      const Arguments good = good_call(name, seed);
      for (const std::vector<int64_t>& size : std::vector<std::vector<int64_t>>{{}, {4, 2}, {0, 2, 2}, {-4, 2, 2}, {4, 0, 2}, {4, 2, -1}})
        refuse(name, good, "size", ints_of(size));
      for (const char* backend : {"auto", "sm90", "fast"}) refuse(name, good, "backend", backend);
      refuse(name, good, "cu_seqlens", at::tensor({0, 5, 3, 9}, at::kLong));
      refuse(name, good, "q", Tensor());
      if (std::string(name) != "cyfa::_recurrence_backward") continue;
      refuse(name, good, "saved", list_of({}));
      refuse(name, good, "saved", list_of({at::zeros({1})}));
      refuse(name, good, "grad_o", at::zeros({1}));
      refuse(name, good, "grad_final", at::zeros({2, 2}));
    }
  }
}

}  // namespace
}  // namespace cyfa::test
