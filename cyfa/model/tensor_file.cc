#include "cyfa/model/tensor_file.h"

#include "cyfa/io/file_error.h"

namespace cyfa {
namespace {

struct TypePair {
  io::DType file;
  at::ScalarType torch;
};
constexpr TypePair kTypes[] = {{io::DType::kF64, at::kDouble},    {io::DType::kF32, at::kFloat}, {io::DType::kF16, at::kHalf},
                               {io::DType::kBF16, at::kBFloat16}, {io::DType::kI64, at::kLong},  {io::DType::kI32, at::kInt},
                               {io::DType::kI16, at::kShort},     {io::DType::kI8, at::kChar},   {io::DType::kU8, at::kByte},
                               {io::DType::kBool, at::kBool}};

io::DType file_type(at::ScalarType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.torch == type) return pair.file;
  }
  throw std::invalid_argument(std::string("no safetensors dtype for ") + c10::toString(type));
}

}  // namespace

at::ScalarType scalar_type(io::DType dtype) {
  for (const TypePair& pair : kTypes) {
    if (pair.file == dtype) return pair.torch;
  }
  throw std::invalid_argument("no torch type for this dtype");
}

at::Tensor TensorFile::mapped(const std::string& name) const {
  const io::TensorView& view = file_->at(name);
  const auto options = at::TensorOptions(scalar_type(view.dtype));
  if (view.bytes == 0) return at::empty(view.shape, options);
  auto* data = const_cast<std::byte*>(view.data);  // never written to: trained or updated parameters are copies
  const auto keep = [file = file_](void*) {};
  if (reinterpret_cast<uintptr_t>(data) % io::dtype_size(view.dtype) != 0) {
    at::Tensor copy = at::empty(view.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, view.bytes);
    return copy;
  }
  return at::from_blob(data, view.shape, keep, options);
}

at::Tensor TensorFile::copy(const std::string& name, std::optional<at::ScalarType> dtype, at::Device device) const {
  const io::TensorView& view = file_->at(name);
  const at::Tensor from = mapped(name);
  at::Tensor to = at::empty(from.sizes(), at::TensorOptions(dtype.value_or(from.scalar_type())).device(device));
  to.copy_(from);
  file_->file().forget({view.data, view.bytes});
  return to;
}

void write_tensor_file(const std::filesystem::path& path, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<at::Tensor> keep;
  std::vector<io::NamedTensor> views;
  for (const auto& [name, tensor] : tensors) {
    keep.push_back(tensor.detach().to(at::kCPU).contiguous());
    const at::Tensor& x = keep.back();
    views.push_back({name, {file_type(x.scalar_type()), x.sizes().vec(), static_cast<const std::byte*>(x.const_data_ptr()), x.nbytes()}});
  }
  io::write_safetensors(path, views, metadata);
}

}  // namespace cyfa
