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

// The torch type of a safetensors type.
at::ScalarType scalar_type(io::DType dtype);

// A memory-mapped safetensors file.
class TensorFile {
 public:
  explicit TensorFile(const std::filesystem::path& path)
      : file_(std::make_shared<const io::SafetensorsFile>(io::SafetensorsFile::open(path))) {}

  const io::SafetensorsFile& file() const { return *file_; }
  bool contains(const std::string& name) const { return file_->contains(name); }

  // A tensor that aliases the mapped file and keeps it open. No data is copied; writing to it faults. If the file does not align the
  // tensor's elements, a copy.
  at::Tensor mapped(const std::string& name) const;
  // A tensor that owns its memory, in `dtype` (default: the file's type) on `device`.
  at::Tensor copy(const std::string& name, std::optional<at::ScalarType> dtype = std::nullopt, at::Device device = at::kCPU) const;

 private:
  std::shared_ptr<const io::SafetensorsFile> file_;
};

// Writes tensors from any device, in the given order. The file is written atomically.
void write_tensor_file(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace cyfa
