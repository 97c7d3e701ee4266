#include "apps/verify_op_file.h"

#include <charconv>
#include <set>

#include "cyfa/io/file_error.h"
#include "cyfa/io/safetensors.h"

namespace cyfa::app {
namespace {

// States of this many numbers would not fit the memory of most machines; real vector files are far below.
constexpr double kMostStateNumbers = 1 << 28;

struct Dim {
  const char* letter;
  int64_t size;  // -1: free
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), file_(io::SafetensorsFile::open(path)) {}

  [[noreturn]] void fail(const std::string& message) const { throw io::FileError(path_, message); }

  bool has(const std::string& name) const { return file_.contains(name); }

  // The tensor of that name in fp64, or an error that says what is wrong with it.
  at::Tensor take(const std::string& name, std::initializer_list<Dim> wanted) {
    const io::TensorView& view = checked(name, wanted);
    if (view.dtype != io::DType::kF32 && view.dtype != io::DType::kF64 && view.dtype != io::DType::kBF16 && view.dtype != io::DType::kF16) {
      fail("tensor " + io::printable(name) + ": dtype is " + std::string(io::dtype_name(view.dtype)) + "; wanted F32, F64, BF16 or F16");
    }
    return at::tensor(io::to_double(view), at::kDouble).view(view.shape);
  }

  at::Tensor take_if_there(const std::string& name, std::initializer_list<Dim> wanted) {
    return has(name) ? take(name, wanted) : at::Tensor();
  }

  at::Tensor take_offsets(const std::string& name) {
    const io::TensorView& view = checked(name, {{"N + 1", -1}});
    if (view.numel() == 0) fail("tensor " + io::printable(name) + " is empty; wanted N + 1 borders, the first of them 0");
    if (view.dtype == io::DType::kI32) {
      return at::tensor(file_.read<int32_t>(name), at::kInt);
    }
    return at::tensor(file_.read<int64_t>(name), at::kLong);
  }

  double number(const std::string& key, double otherwise) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) return otherwise;
    const std::string& value = found->second;
    double result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(result)) {
      fail("metadata " + io::printable(key) + " is " + io::printable(value) + "; wanted a finite number");
    }
    return result;
  }

  // A tensor that nobody asked for is a misspelt name, and would go unchecked.
  void expect_nothing_else() const {
    for (const std::string& name : file_.names()) {
      if (!used_.contains(name)) fail("tensor " + io::printable(name) + " is none of the format's, or belongs to an input that is absent");
    }
  }

 private:
  const io::TensorView& checked(const std::string& name, std::initializer_list<Dim> wanted) {
    const io::TensorView& view = file_.at(name);
    used_.insert(name);
    bool good = view.shape.size() == wanted.size();
    std::string letters;
    std::string sizes;
    for (const Dim& d : wanted) {
      const auto i = static_cast<size_t>(&d - wanted.begin());
      good = good && (d.size < 0 || view.shape[i] == d.size);
      letters += (i == 0 ? "" : ", ") + std::string(d.letter);
      sizes += (i == 0 ? "" : ", ") + (d.size < 0 ? std::string("any") : std::to_string(d.size));
    }
    if (!good) {
      fail("tensor " + io::printable(name) + ": shape is " + shape_text(view.shape) + "; wanted [" + letters + "] = [" + sizes + "]");
    }
    return view;
  }

  const std::filesystem::path& path_;
  io::SafetensorsFile file_;
  std::set<std::string> used_;
};

// A file of a few bytes can name sizes that make a state of any size: where T is 0, or for many empty sequences.
void check_state_size(const Reader& file, const ops::CyclicFlowInputs& in, int64_t N) {
  const auto size = [](const at::Tensor& x, int64_t i) { return static_cast<double>(x.size(i)); };
  const double numbers = static_cast<double>(N) * size(in.q, 2) * (size(in.readout, 1) + 1) * (size(in.q, 3) + size(in.v, 3));
  if (numbers > kMostStateNumbers) {
    file.fail("tensor \"q\": shape " + shape_text(in.q.sizes().vec()) + " and " + std::to_string(N) +
              " sequences ask for a state of more than 2^28 numbers");
  }
}

at::Tensor moved(const at::Tensor& x, at::ScalarType dtype, at::Device device) { return x.defined() ? x.to(device, dtype) : x; }

}  // namespace

OpFile read_op_file(const std::filesystem::path& path) {
  Reader file(path);
  OpFile out;
  ops::CyclicFlowInputs& in = out.inputs;
  in.q = file.take("q", {{"B", -1}, {"T", -1}, {"H", -1}, {"K", -1}});
  const int64_t B = in.q.size(0);
  const int64_t T = in.q.size(1);
  const int64_t H = in.q.size(2);
  const int64_t K = in.q.size(3);
  in.k = file.take("k", {{"B", B}, {"T", T}, {"H", H}, {"K", K}});
  in.v = file.take("v", {{"B", B}, {"T", T}, {"H", H}, {"V", -1}});
  in.log_alpha = file.take("g", {{"B", B}, {"T", T}, {"H", H}});
  in.delta = file.take("delta", {{"B", B}, {"T", T}, {"H", H}});
  in.beta = file.take("beta", {{"B", B}, {"T", T}, {"H", H}});
  in.readout = file.take("readout", {{"H", H}, {"m", -1}, {"m", -1}});
  if (file.has("cu_seqlens")) in.cu_seqlens = file.take_offsets("cu_seqlens");
  const int64_t N = in.cu_seqlens ? in.cu_seqlens->numel() - 1 : B;
  const int64_t V = in.v.size(3);
  const int64_t M = in.readout.size(1) + 1;
  check_state_size(file, in, N);
  if (file.has("q_norm_weight")) in.q_norm_weight = file.take("q_norm_weight", {{"K", K}});
  if (file.has("k_norm_weight")) in.k_norm_weight = file.take("k_norm_weight", {{"K", K}});

  const auto take_state = [&](const std::string& prefix, bool all) {
    const auto take = [&](const char* part, std::initializer_list<Dim> wanted) {
      return all ? file.take(prefix + part, wanted) : file.take_if_there(prefix + part, wanted);
    };
    return ops::CyclicFlowState{take("k", {{"N", N}, {"H", H}, {"K", K}, {"M", M}}), take("v", {{"N", N}, {"H", H}, {"M", M}, {"V", V}}),
                                take("lambda", {{"N", N}, {"H", H}})};
  };
  if (file.has("initial_k") || file.has("initial_v") || file.has("initial_lambda")) in.initial_state = take_state("initial_", true);
  out.upstream.o = file.take_if_there("do", {{"B", B}, {"T", T}, {"H", H}, {"V", V}});
  out.upstream.final_state = take_state("d_final_", false);

  const auto expect = [&](const std::string& name, const at::Tensor& x) {
    if (x.defined()) out.expected.emplace_back(name, x);
  };
  expect("o", file.take_if_there("o", {{"B", B}, {"T", T}, {"H", H}, {"V", V}}));
  const auto expect_state = [&](const std::string& prefix) {
    const ops::CyclicFlowState state = take_state(prefix, false);
    expect(prefix + "k", state.k);
    expect(prefix + "v", state.v);
    expect(prefix + "lambda", state.clock);
  };
  expect_state("final_");
  const size_t outputs = out.expected.size();
  expect("d_q", file.take_if_there("d_q", {{"B", B}, {"T", T}, {"H", H}, {"K", K}}));
  expect("d_k", file.take_if_there("d_k", {{"B", B}, {"T", T}, {"H", H}, {"K", K}}));
  expect("d_v", file.take_if_there("d_v", {{"B", B}, {"T", T}, {"H", H}, {"V", V}}));
  for (const char* gate : {"d_g", "d_delta", "d_beta"}) expect(gate, file.take_if_there(gate, {{"B", B}, {"T", T}, {"H", H}}));
  expect("d_readout", file.take_if_there("d_readout", {{"H", H}, {"m", M - 1}, {"m", M - 1}}));
  if (in.q_norm_weight) expect("d_q_norm_weight", file.take_if_there("d_q_norm_weight", {{"K", K}}));
  if (in.k_norm_weight) expect("d_k_norm_weight", file.take_if_there("d_k_norm_weight", {{"K", K}}));
  if (in.initial_state) expect_state("d_initial_");
  file.expect_nothing_else();

  if (out.expected.empty()) file.fail("holds no expected tensor (o, final_k, d_q, ...): there is nothing to compare with");
  if (out.expected.size() > outputs && !out.upstream.any()) {
    file.fail("holds expected gradients (" + out.expected[outputs].first +
              ", ...) and neither do nor d_final_*, from which they would come");
  }
  out.options.scale = file.number("scale", 1.0 / std::sqrt(static_cast<double>(K)));
  out.options.norm_eps = file.number("norm_eps", out.options.norm_eps);
  return out;
}

ops::CyclicFlowInputs converted(const ops::CyclicFlowInputs& in, at::ScalarType dtype, at::Device device) {
  const at::ScalarType rest = dtype == at::kDouble ? at::kDouble : at::kFloat;
  ops::CyclicFlowInputs out{moved(in.q, dtype, device),
                            moved(in.k, dtype, device),
                            moved(in.v, dtype, device),
                            moved(in.log_alpha, rest, device),
                            moved(in.delta, rest, device),
                            moved(in.beta, rest, device),
                            moved(in.readout, rest, device),
                            std::nullopt,
                            std::nullopt,
                            std::nullopt,
                            in.cu_seqlens};
  if (in.q_norm_weight) out.q_norm_weight = moved(*in.q_norm_weight, rest, device);
  if (in.k_norm_weight) out.k_norm_weight = moved(*in.k_norm_weight, rest, device);
  if (in.initial_state) {
    out.initial_state = {moved(in.initial_state->k, rest, device), moved(in.initial_state->v, rest, device),
                         moved(in.initial_state->clock, at::kDouble, device)};
  }
  return out;
}

}  // namespace cyfa::app
