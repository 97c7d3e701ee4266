// The safetensors format: an 8-byte little-endian header length, a JSON header, then the tensors' bytes back to back.
//
// A file is trusted in nothing: every size, name, type and offset is checked when it is opened, before a byte of tensor data
// is used and without allocating more than a small multiple of the header's own length. Reading maps the file; writing goes
// through AtomicFile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cyfa/io/mapped_file.h"

namespace cyfa::io {

enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

size_t dtype_size(DType dtype);
// The name in the header: "F64", ..., "BOOL".
std::string_view dtype_name(DType dtype);

// The DType whose elements are T. F16, BF16 and BOOL have no C++ type here: copy their bytes, or use to_double().
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) {
    return DType::kF64;
  } else if constexpr (std::is_same_v<T, float>) {
    return DType::kF32;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return DType::kI64;
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return DType::kI32;
  } else if constexpr (std::is_same_v<T, int16_t>) {
    return DType::kI16;
  } else if constexpr (std::is_same_v<T, int8_t>) {
    return DType::kI8;
  } else {
    static_assert(std::is_same_v<T, uint8_t>, "no safetensors dtype has this element type");
    return DType::kU8;
  }
}

// A row-major tensor in memory that someone else owns. `data` may lie at any address: the format promises no alignment.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty: a scalar, one element
  const std::byte* data = nullptr;
  size_t bytes = 0;

  int64_t numel() const { return static_cast<int64_t>(bytes / dtype_size(dtype)); }
};

// A copy of the elements as double, from any dtype (BOOL: 0 or 1; I64 beyond 2^53 is rounded).
std::vector<double> to_double(const TensorView& tensor);

class SafetensorsFile {
 public:
  // Throws FileError, naming the file, the tensor, what came and what was wanted.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // In the order of the header.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return tensors_.contains(name); }
  // The views hold until the object that owns the file last is destroyed; moving it does not disturb them.
  const TensorView& at(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const MappedFile& file() const { return file_; }

  // The same, for a caller that can use one dtype only: another is a FileError.
  const TensorView& at(std::string_view name, DType dtype) const;

  // The elements of a tensor whose dtype is that of T exactly, copied, so that alignment is no concern.
  template <class T>
  std::vector<T> read(std::string_view name) const {
    std::vector<T> result(static_cast<size_t>(at(name, dtype_of<T>()).numel()));
    copy_to(name, dtype_of<T>(), std::as_writable_bytes(std::span(result)));
    return result;
  }
  // Fills `destination`, whose size in bytes must be the tensor's.
  void copy_to(std::string_view name, DType dtype, std::span<std::byte> destination) const;

 private:
  SafetensorsFile() = default;

  std::filesystem::path path_;
  MappedFile file_;
  std::vector<std::string> names_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;
};

// Writes the tensors in the given order, the data section beginning at a multiple of 8. All is checked first, so that what is
// written can be opened; the file at `path` is replaced whole or, on any FileError, left as it was. Tensors of mixed element
// sizes stay aligned when the larger sizes come first.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace cyfa::io
