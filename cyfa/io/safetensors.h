// Reader and writer of the safetensors format: an 8-byte little-endian header length, a JSON header, then the bytes of the tensors without
// gaps. Used for checkpoints, saved states and test vectors.
//
// Files are not trusted: every size, name, type and offset is checked when a file is opened, before any tensor data is used, and without
// allocating more than a small multiple of the header's length. Reading maps the file; writing uses AtomicFile.
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

// Element types.
enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

// Bytes of an element.
size_t dtype_size(DType dtype);
// The type's name in the header: "F64", ..., "BOOL".
std::string_view dtype_name(DType dtype);

// The DType with elements of type T. F16, BF16 and BOOL have no C++ type here: copy their bytes, or use to_double().
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

// A row-major tensor in memory owned by someone else. `data` may have any alignment: the format guarantees none.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty: a scalar with one element
  const std::byte* data = nullptr;
  size_t bytes = 0;

  int64_t numel() const { return static_cast<int64_t>(bytes / dtype_size(dtype)); }
};

// A copy of the elements as double, from any dtype. BOOL gives 0 or 1; I64 beyond 2^53 is rounded.
std::vector<double> to_double(const TensorView& tensor);

// An open file with validated contents.
class SafetensorsFile {
 public:
  // Throws FileError with the file, the tensor, what was found and what was expected.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // Tensor names in the order of the header.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return tensors_.contains(name); }
  // The view of a tensor; FileError if there is none. Views stay valid when this object is moved, and end with its final owner.
  const TensorView& at(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const MappedFile& file() const { return file_; }

  // The same, but a dtype other than `dtype` is a FileError.
  const TensorView& at(std::string_view name, DType dtype) const;

  // A copy of a tensor's elements, aligned for T. Any other dtype than T's is a FileError.
  template <class T>
  std::vector<T> read(std::string_view name) const {
    std::vector<T> result(static_cast<size_t>(at(name, dtype_of<T>()).numel()));
    copy_to(name, dtype_of<T>(), std::as_writable_bytes(std::span(result)));
    return result;
  }
  // Copies a tensor to `destination`, whose size in bytes must be the tensor's.
  void copy_to(std::string_view name, DType dtype, std::span<std::byte> destination) const;

 private:
  SafetensorsFile() = default;

  std::filesystem::path path_;
  MappedFile file_;
  std::vector<std::string> names_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to write.
struct NamedTensor {
  std::string name;
  TensorView tensor;
};

// Writes the tensors in the given order; the data section starts at a multiple of 8. Everything is validated first, so the result can be
// opened again. `path` is replaced atomically, and unchanged after a FileError. With mixed element sizes, put the larger ones first to keep
// all tensors aligned.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace cyfa::io
