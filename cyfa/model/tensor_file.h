// Safetensors files as torch tensors.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cyfa/io/safetensors.h"

namespace cyfa {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

at::ScalarType scalar_type(io::DType dtype);

class TensorFile {
 public:
  explicit TensorFile(const std::filesystem::path& path)
      : file_(std::make_shared<const io::SafetensorsFile>(io::SafetensorsFile::open(path))) {}

  const io::SafetensorsFile& file() const { return *file_; }
  bool contains(const std::string& name) const { return file_->contains(name); }

  // The tensor as it lies in the mapped file, which it keeps open: reading it costs nothing, writing to it is a fault. Where the file
  // does not align its elements, a copy.
  at::Tensor mapped(const std::string& name) const;
  // A tensor of its own, in `dtype` (absent: the file's) on `device`.
  at::Tensor copy(const std::string& name, std::optional<at::ScalarType> dtype = std::nullopt, at::Device device = at::kCPU) const;

 private:
  std::shared_ptr<const io::SafetensorsFile> file_;
};

// Writes tensors of any device, in the given order, whole or not at all.
void write_tensor_file(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace cyfa
