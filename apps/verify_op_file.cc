#include "apps/verify_op_file.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <set>

#include "cyfa/io/file_error.h"
#include "cyfa/io/safetensors.h"

namespace cyfa::app {
namespace {

using namespace cases;

// Files of a few bytes can name sizes that make a state of any size. Real vector files are far below this.
constexpr double kMostStateNumbers = 1 << 24;

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
void check_state_size(const Reader& file, const Tensors& in, int64_t N) {
  const auto size = [&](const char* name, int64_t i) { return static_cast<double>(in.at(name).size(i)); };
  const double numbers = static_cast<double>(N) * size("q", 2) * (size("readout", 1) + 1) * (size("q", 3) + size("v", 3));
  if (numbers > kMostStateNumbers) {
    file.fail("tensor \"q\": shape " + shape_text(in.at("q").sizes().vec()) + " and " + std::to_string(N) +
              " sequences ask for a state of more than 2^24 numbers");
  }
}

}  // namespace

OpFile read_op_file(const std::filesystem::path& path) {
  Reader file(path);
  OpFile out;
  Tensors& in = out.inputs;
  // Tensors are asked for under our names, read under the file's.
  const auto take = [&](Tensors& to, const std::string& name, std::initializer_list<Dim> wanted) {
    to[name] = file.take(vector_name(name), wanted);
  };
  take(in, "q", {{"B", -1}, {"T", -1}, {"H", -1}, {"K", -1}});
  const int64_t B = in.at("q").size(0), T = in.at("q").size(1), H = in.at("q").size(2), K = in.at("q").size(3);
  take(in, "k", {{"B", B}, {"T", T}, {"H", H}, {"K", K}});
  take(in, "v", {{"B", B}, {"T", T}, {"H", H}, {"V", -1}});
  for (const char* gate : {"log_alpha", "delta", "beta"}) take(in, gate, {{"B", B}, {"T", T}, {"H", H}});
  take(in, "readout", {{"H", H}, {"m", -1}, {"m", -1}});
  if (file.has("cu_seqlens")) in["cu_seqlens"] = file.take_offsets("cu_seqlens");
  const int64_t N = in.contains("cu_seqlens") ? in.at("cu_seqlens").numel() - 1 : B;
  const int64_t V = in.at("v").size(3), M = in.at("readout").size(1) + 1;
  check_state_size(file, in, N);
  for (const char* weight : {"q_norm_weight", "k_norm_weight"}) {
    if (file.has(weight)) take(in, weight, {{"K", K}});
  }

  // The parts of a state under `prefix`: every one of them, or those that are there.
  const auto take_state = [&](const std::string& prefix, bool all, const std::function<void(const char* part, const at::Tensor&)>& put) {
    const auto part = [&](const char* name, std::initializer_list<Dim> wanted) {
      const std::string stored = vector_name(prefix + name);
      if (all || file.has(stored)) put(name, file.take(stored, wanted));
    };
    part("k", {{"N", N}, {"H", H}, {"K", K}, {"M", M}});
    part("v", {{"N", N}, {"H", H}, {"M", M}, {"V", V}});
    part("clock", {{"N", N}, {"H", H}});
  };
  const bool has_state = file.has("initial_k") || file.has("initial_v") || file.has("initial_lambda");
  if (has_state) {
    take_state("initial_", true, [&](const std::string& part, const at::Tensor& x) { in["initial_" + part] = x; });
  }
  if (file.has("do")) out.gradients["o"] = file.take("do", {{"B", B}, {"T", T}, {"H", H}, {"V", V}});
  take_state("d_final_", false, [&](const std::string& part, const at::Tensor& x) { out.gradients["final_" + part] = x; });

  const auto expect = [&](const std::string& name, std::initializer_list<Dim> wanted) {
    if (file.has(vector_name(name))) out.expected.emplace_back(name, file.take(vector_name(name), wanted));
  };
  const auto expect_state = [&](const std::string& prefix) {
    take_state(prefix, false, [&](const std::string& part, const at::Tensor& x) { out.expected.emplace_back(prefix + part, x); });
  };
  expect("o", {{"B", B}, {"T", T}, {"H", H}, {"V", V}});
  expect_state("final_");
  const size_t outputs = out.expected.size();
  expect("d_q", {{"B", B}, {"T", T}, {"H", H}, {"K", K}});
  expect("d_k", {{"B", B}, {"T", T}, {"H", H}, {"K", K}});
  expect("d_v", {{"B", B}, {"T", T}, {"H", H}, {"V", V}});
  for (const char* gate : {"d_log_alpha", "d_delta", "d_beta"}) expect(gate, {{"B", B}, {"T", T}, {"H", H}});
  expect("d_readout", {{"H", H}, {"m", M - 1}, {"m", M - 1}});
  for (const char* weight : {"q_norm_weight", "k_norm_weight"}) {
    if (in.contains(weight)) expect(std::string("d_") + weight, {{"K", K}});
  }
  if (has_state) expect_state("d_initial_");
  file.expect_nothing_else();

  if (out.expected.empty()) file.fail("holds no expected tensor (o, final_k, d_q, ...): there is nothing to compare with");
  if (out.expected.size() > outputs && out.gradients.empty()) {
    file.fail("holds expected gradients (" + vector_name(out.expected[outputs].first) +
              ", ...) and neither do nor d_final_*, from which they would come");
  }
  out.options.scale = file.number("scale", 1.0 / std::sqrt(static_cast<double>(K)));
  out.options.norm_eps = file.number("norm_eps", out.options.norm_eps);
  return out;
}

Tensors converted(const Tensors& x, at::ScalarType dtype, at::Device device) {
  const std::set<std::string> main = {"q", "k", "v", "o"};
  Tensors out;
  for (const auto& [name, t] : x) {
    if (name == "cu_seqlens") {
      out[name] = t;
    } else if (name.ends_with("clock")) {
      out[name] = t.to(device, at::kDouble);
    } else {
      out[name] = t.to(device, main.contains(name) || dtype == at::kDouble ? dtype : at::kFloat);
    }
  }
  return out;
}

}  // namespace cyfa::app
