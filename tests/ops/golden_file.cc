#include "tests/ops/golden_file.h"

#include <cstdio>
#include <stdexcept>

#include "cyfa/io/safetensors.h"

namespace cyfa::test {
namespace {

// Output gradients, the inputs of backward: do and d_final_*.
std::string gradient_file_name(const std::string& output) { return output == "o" ? "do" : "d_" + vector_name(output); }

at::ScalarType torch_type(io::DType dtype) {
  switch (dtype) {
    case io::DType::kF64: return at::kDouble;
    case io::DType::kF32: return at::kFloat;
    case io::DType::kI64: return at::kLong;
    default: throw std::runtime_error("golden file: type " + std::string(io::dtype_name(dtype)) + ", wanted F64, F32 or I64");
  }
}

io::DType file_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return io::DType::kF64;
    case at::kFloat: return io::DType::kF32;
    case at::kLong: return io::DType::kI64;
    default: throw std::runtime_error(std::string("golden file: type ") + c10::toString(dtype) + ", wanted Double, Float or Long");
  }
}

std::string number(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", x);
  return text;
}

}  // namespace

GoldenFile read_golden(const std::filesystem::path& path) {
  const io::SafetensorsFile file = io::SafetensorsFile::open(path);
  GoldenFile golden;
  golden.scale = std::stod(file.metadata().at("scale"));
  golden.norm_eps = std::stod(file.metadata().at("norm_eps"));
  if (file.metadata().contains("source")) golden.source = file.metadata().at("source");
  for (const std::string& stored : file.names()) {
    const io::TensorView& view = file.at(stored);
    const at::Tensor x = at::empty(view.shape, torch_type(view.dtype));
    file.copy_to(stored, view.dtype, {static_cast<std::byte*>(x.data_ptr()), x.nbytes()});
    const std::string name = name_of_vector(stored);
    if (name == "do") {
      golden.gradients["o"] = x;
    } else if (name.starts_with("d_final_")) {
      golden.gradients[name.substr(2)] = x;
    } else if (name == "o" || name.starts_with("d_") || name.starts_with("final_")) {
      golden.results[name] = x;
    } else {
      golden.inputs[name] = x;
    }
  }
  return golden;
}

void write_golden(const std::filesystem::path& path, const GoldenFile& golden) {
  std::vector<at::Tensor> kept;
  std::vector<io::NamedTensor> tensors;
  const auto add = [&](const std::string& name, const at::Tensor& x) {
    kept.push_back(x.contiguous());
    const at::Tensor& c = kept.back();
    tensors.push_back({name, {file_type(c.scalar_type()), c.sizes().vec(), static_cast<const std::byte*>(c.const_data_ptr()), c.nbytes()}});
  };
  for (const auto& [name, x] : golden.inputs) add(vector_name(name), x);
  for (const auto& [name, x] : golden.gradients) add(gradient_file_name(name), x);
  for (const auto& [name, x] : golden.results) add(vector_name(name), x);
  io::write_safetensors(path, tensors, {{"scale", number(golden.scale)}, {"norm_eps", number(golden.norm_eps)}, {"source", golden.source}});
}

}  // namespace cyfa::test
