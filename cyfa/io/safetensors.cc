// See safetensors.h.
#include "cyfa/io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"

namespace cyfa::io {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are used as they lie in the file, little-endian");

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = uint64_t{100} << 20;
// Far above any model's rank; bounds the memory that a crafted shape can take.
constexpr size_t kHighestRank = 64;
// Far above any file of a checkpoint; bounds the memory that a crafted header can take.
constexpr size_t kMostTensors = size_t{1} << 18;
// Bounds the other dimensions of an empty tensor, which no data backs: a file of a few bytes must not ask for work of any size.
constexpr uint64_t kMostEmptyElements = uint64_t{1} << 20;
constexpr size_t kDataAlignment = 8;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kKnownDTypes = "F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL";

struct DTypeInfo {
  std::string_view name;
  size_t size;
};

// Indexed by DType.
constexpr std::array<DTypeInfo, 10> kDTypes = {
    {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1}, {"U8", 1}, {"BOOL", 1}}};

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

// The size of a shape, without its zeros: the result then does not depend on the order of the dimensions, and the strides of an empty
// tensor cannot overflow either.
struct ShapeSize {
  uint64_t bytes;  // of the elements that the other dimensions make, if a dimension is 0
  bool empty;      // a dimension is 0
};

// None if a dimension is negative or the size overflows int64.
std::optional<ShapeSize> shape_size(DType dtype, const std::vector<int64_t>& shape) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  ShapeSize size = {dtype_size(dtype), false};
  for (const int64_t extent : shape) {
    if (extent < 0) {
      return std::nullopt;
    }
    if (extent == 0) {
      size.empty = true;
    } else if (size.bytes > kLargest / static_cast<uint64_t>(extent)) {
      return std::nullopt;
    } else {
      size.bytes *= static_cast<uint64_t>(extent);
    }
  }
  return size;
}

// Why a tensor of this shape cannot have `bytes` bytes of data; empty if it can.
std::string size_problem(DType dtype, const std::vector<int64_t>& shape, uint64_t bytes) {
  const std::optional<ShapeSize> size = shape_size(dtype, shape);
  const std::string of_shape = "shape " + shape_text(shape);
  if (!size) {
    return "the size of " + of_shape + " is negative or overflows 64 bits";
  }
  if (size->empty && size->bytes / dtype_size(dtype) > kMostEmptyElements) {
    return of_shape + " has no elements; its other dimensions make more than " + std::to_string(kMostEmptyElements);
  }
  const uint64_t wanted = size->empty ? 0 : size->bytes;
  if (bytes == wanted) {
    return "";
  }
  return std::to_string(bytes) + " bytes of data; " + of_shape + " of " + std::string(dtype_name(dtype)) + " wants " +
         std::to_string(wanted);
}

// A tensor of the header. Offsets are relative to the data section.
struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Handler of nlohmann's SAX parser, which does not recurse. Accepts exactly the grammar of the header:
//   {"__metadata__": {string: string, ...}, name: {"dtype": string, "shape": [unsigned, ...], "data_offsets": [begin, end]}, ...}
// An unexpected event throws FileError at once, so the nesting depth is at most three.
class HeaderHandler {
 public:
  explicit HeaderHandler(const std::filesystem::path& path) : path_(path) {}

  std::vector<Entry> take_entries() { return std::move(entries_); }
  std::map<std::string, std::string> take_metadata() { return std::move(metadata_); }

  bool start_object(size_t) {
    switch (place_) {
      case Place::kStart: return go(Place::kTop);
      case Place::kMetadataValue: return go(Place::kMetadata);
      case Place::kTensorValue: return go(Place::kTensor);
      default: unexpected("an object");
    }
  }

  bool end_object() {
    if (place_ == Place::kTensor) {
      finish_tensor();
    }
    return go(place_ == Place::kTop ? Place::kEnd : Place::kTop);
  }

  bool key(std::string& text) {
    if (place_ == Place::kMetadata) {
      metadata_key_ = text;
      if (metadata_.contains(text)) {
        fail(where() + " appears twice");
      }
      return go(Place::kMetadataEntry);
    }
    if (place_ == Place::kTensor) {
      return tensor_field(text);
    }
    if (!names_.insert(text).second) {
      fail("the name " + printable(text) + " appears twice in the header");
    }
    if (text == kMetadataKey) {
      return go(Place::kMetadataValue);
    }
    if (entries_.size() == kMostTensors) fail("the header has more than " + std::to_string(kMostTensors) + " tensors");
    entries_.push_back({.name = text, .shape = {}});
    has_dtype_ = has_shape_ = has_offsets_ = false;
    return go(Place::kTensorValue);
  }

  bool string(std::string& text) {
    if (place_ == Place::kMetadataEntry) {
      metadata_.emplace(metadata_key_, text);
      return go(Place::kMetadata);
    }
    if (place_ != Place::kDtype) {
      unexpected("the string " + printable(text));
    }
    const std::optional<DType> dtype = parse_dtype(text);
    if (!dtype) {
      fail(where() + " is " + printable(text) + "; supported are " + std::string(kKnownDTypes));
    }
    entries_.back().dtype = *dtype;
    return go(Place::kTensor);
  }

  bool start_array(size_t) {
    switch (place_) {
      case Place::kShapeValue: return go(Place::kShape);
      case Place::kOffsetsValue: return go(Place::kOffsets);
      default: unexpected("an array");
    }
  }

  bool end_array() {
    if (place_ == Place::kOffsets && offset_count_ != 2) {
      fail(where() + " has " + std::to_string(offset_count_) + " numbers; wanted [begin, end]");
    }
    return go(Place::kTensor);
  }

  bool number_unsigned(uint64_t value) {
    if (place_ == Place::kShape) {
      std::vector<int64_t>& shape = entries_.back().shape;
      if (shape.size() == kHighestRank) {
        fail(where() + " has more than " + std::to_string(kHighestRank) + " dimensions");
      }
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail(where() + " holds " + std::to_string(value) + ", beyond a 64-bit signed integer");
      }
      shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ != Place::kOffsets) {
      unexpected("the number " + std::to_string(value));
    }
    if (offset_count_ == 2) {
      fail(where() + " has more than 2 numbers; wanted [begin, end]");
    }
    (offset_count_ == 0 ? entries_.back().begin : entries_.back().end) = value;
    ++offset_count_;
    return true;
  }

  // A number with a minus sign.
  bool number_integer(int64_t value) { unexpected("the signed number " + std::to_string(value)); }
  // A number with a fraction or an exponent, or an integer beyond 64 bits.
  bool number_float(double, const std::string& text) { unexpected("the number " + text.substr(0, 40)); }
  bool boolean(bool value) { unexpected(value ? "true" : "false"); }
  bool null() { unexpected("null"); }
  bool binary(Json::binary_t&) { unexpected("binary data"); }

  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    fail("the header is not valid JSON in UTF-8: error at its byte " + std::to_string(position));
  }

 private:
  enum class Place {
    kStart,
    kTop,
    kMetadataValue,
    kMetadata,
    kMetadataEntry,
    kTensorValue,
    kTensor,
    kDtype,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kEnd
  };

  bool go(Place place) {
    place_ = place;
    return true;
  }

  bool tensor_field(const std::string& field) {
    const auto once = [&](bool& seen) {
      if (std::exchange(seen, true)) {
        fail(where() + ": " + field + " appears twice");
      }
    };
    if (field == "dtype") {
      once(has_dtype_);
      return go(Place::kDtype);
    }
    if (field == "shape") {
      once(has_shape_);
      return go(Place::kShapeValue);
    }
    if (field == "data_offsets") {
      once(has_offsets_);
      offset_count_ = 0;
      return go(Place::kOffsetsValue);
    }
    fail(where() + " has the unknown field " + printable(field) + "; known are dtype, shape, data_offsets");
  }

  void finish_tensor() const {
    const auto need = [&](bool seen, const char* field) {
      if (!seen) {
        fail(where() + " has no " + field);
      }
    };
    need(has_dtype_, "dtype");
    need(has_shape_, "shape");
    need(has_offsets_, "data_offsets");
  }

  std::string where() const {
    switch (place_) {
      case Place::kMetadataValue: return std::string(kMetadataKey);
      case Place::kMetadata:
      case Place::kMetadataEntry: return std::string(kMetadataKey) + " entry " + printable(metadata_key_);
      case Place::kStart:
      case Place::kTop:
      case Place::kEnd: return "the header";
      default: break;
    }
    std::string tensor = "tensor " + printable(entries_.back().name);
    switch (place_) {
      case Place::kDtype: return tensor + ": dtype";
      case Place::kShapeValue:
      case Place::kShape: return tensor + ": shape";
      case Place::kOffsetsValue:
      case Place::kOffsets: return tensor + ": data_offsets";
      default: return tensor;
    }
  }

  const char* wanted() const {
    switch (place_) {
      case Place::kMetadataEntry:
      case Place::kDtype: return "a string";
      case Place::kShapeValue: return "an array of non-negative integers";
      case Place::kOffsetsValue: return "[begin, end]";
      case Place::kShape:
      case Place::kOffsets: return "non-negative integers of 64 bits";
      default: return "an object";
    }
  }

  [[noreturn]] void unexpected(const std::string& what) const { fail(where() + ": came " + what + "; wanted " + wanted()); }
  [[noreturn]] void fail(const std::string& message) const { throw FileError(path_, message); }

  const std::filesystem::path& path_;
  Place place_ = Place::kStart;
  std::vector<Entry> entries_;
  std::set<std::string> names_;
  std::map<std::string, std::string> metadata_;
  std::string metadata_key_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  int offset_count_ = 0;
};

uint64_t load_little_endian(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  }
  return value;
}

// The header's text within the file.
std::span<const std::byte> find_header(const std::filesystem::path& path, std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    throw FileError(path, "has " + std::to_string(file.size()) + " bytes; a safetensors file has at least 8");
  }
  const uint64_t length = load_little_endian(file);
  const uint64_t limit = std::min<uint64_t>(kLongestHeader, file.size() - kLengthBytes);
  if (length > limit) {
    throw FileError(path, "the header claims " + std::to_string(length) + " bytes; at most " + std::to_string(limit) +
                              " are possible (file of " + std::to_string(file.size()) +
                              " bytes, headers up to 100 MiB): " + "truncated, or not a safetensors file");
  }
  const auto header = file.subspan(kLengthBytes, length);
  if (header.empty() || header[0] != std::byte{'{'}) {
    throw FileError(path, "the header does not begin with '{': not a safetensors file");
  }
  // The parser treats a zero byte as the end of its input and would ignore what follows.
  const auto zero = std::find(header.begin(), header.end(), std::byte{0});
  if (zero != header.end()) {
    throw FileError(path, "the header is not valid JSON in UTF-8: zero byte at its byte " + std::to_string(zero - header.begin()));
  }
  return header;
}

// Checks that each tensor lies in the data section and has the number of bytes that its shape and dtype need.
void check_sizes(const std::filesystem::path& path, const std::vector<Entry>& entries, uint64_t data_size) {
  for (const Entry& entry : entries) {
    const auto fail = [&](const std::string& message) { throw FileError(path, "tensor " + printable(entry.name) + ": " + message); };
    const auto offsets = [&] { return "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]"; };
    if (entry.begin > entry.end || entry.end > data_size) {
      fail(offsets() + " do not fit; wanted begin <= end <= " + std::to_string(data_size) + ", the size of the data section");
    }
    const std::string problem = size_problem(entry.dtype, entry.shape, entry.end - entry.begin);
    if (!problem.empty()) {
      fail(offsets() + ": " + problem);
    }
  }
}

// Checks that the tensors cover the whole data section, each byte exactly once.
void check_coverage(const std::filesystem::path& path, const std::vector<Entry>& entries, uint64_t data_size) {
  std::vector<const Entry*> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries) {
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(),
            [](const Entry* a, const Entry* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  uint64_t covered = 0;
  const Entry* before = nullptr;
  for (const Entry* entry : order) {
    if (entry->begin != covered) {
      throw FileError(path, "tensor " + printable(entry->name) + ": begins at byte " + std::to_string(entry->begin) +
                                " of the data section; wanted " + std::to_string(covered) + ", " +
                                (before == nullptr ? "its first byte" : "the end of tensor " + printable(before->name)) + ": " +
                                (entry->begin < covered ? "they overlap" : "the bytes between belong to no tensor"));
    }
    covered = entry->end;
    before = entry;
  }
  if (covered != data_size) {
    throw FileError(path, "the data section has " + std::to_string(data_size) + " bytes; the tensors end at byte " +
                              std::to_string(covered) + ": the rest belongs to no tensor");
  }
}

double half_to_double(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  if (exponent == 31) {
    return sign * (fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN());
  }
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25));
}

double bfloat16_to_double(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

template <class T, class Convert>
std::vector<double> convert_elements(const TensorView& tensor, Convert convert) {
  std::vector<double> result(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < result.size(); ++i) {
    T value;
    std::memcpy(&value, tensor.data + i * sizeof(T), sizeof(T));
    result[i] = convert(value);
  }
  return result;
}

std::string json_string(const std::filesystem::path& path, const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    throw FileError(path, "cannot write " + printable(text) + ": not valid UTF-8");
  }
}

std::string make_header(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  const auto separate = [&] { header += header.back() == '{' ? "" : ","; };
  if (!metadata.empty()) {
    header += json_string(path, std::string(kMetadataKey)) + ":{";
    for (const auto& [key, value] : metadata) {
      separate();
      header += json_string(path, key) + ":" + json_string(path, value);
    }
    header += "}";
  }
  uint64_t offset = 0;
  for (const NamedTensor& named : tensors) {
    const TensorView& tensor = named.tensor;
    separate();
    header += json_string(path, named.name) + ":{\"dtype\":\"" + std::string(dtype_name(tensor.dtype)) + "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      header += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
    }
    header += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + tensor.bytes) + "]}";
    offset += tensor.bytes;
  }
  header += "}";
  header.append((kDataAlignment - header.size() % kDataAlignment) % kDataAlignment, ' ');
  if (header.size() > kLongestHeader) {
    throw FileError(path, "cannot write: the header would have " + std::to_string(header.size()) + " bytes; at most 100 MiB can be read");
  }
  return header;
}

void check_writable(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  std::set<std::string_view> names;
  for (const NamedTensor& named : tensors) {
    const std::string& name = named.name;
    const TensorView& tensor = named.tensor;
    const auto fail = [&](const std::string& message) { throw FileError(path, "cannot write tensor " + printable(name) + ": " + message); };
    if (name == kMetadataKey) {
      fail("the name is reserved");
    }
    if (!names.insert(name).second) {
      fail("the name appears twice");
    }
    if (tensor.shape.size() > kHighestRank) {
      fail(std::to_string(tensor.shape.size()) + " dimensions; at most " + std::to_string(kHighestRank) + " can be read");
    }
    const std::string problem = size_problem(tensor.dtype, tensor.shape, tensor.bytes);
    if (!problem.empty()) {
      fail(problem);
    }
    if (tensor.bytes > 0 && tensor.data == nullptr) {
      fail("data is null");
    }
  }
}

}  // namespace

size_t dtype_size(DType dtype) { return kDTypes.at(static_cast<size_t>(dtype)).size; }

std::string_view dtype_name(DType dtype) { return kDTypes.at(static_cast<size_t>(dtype)).name; }

std::vector<double> to_double(const TensorView& tensor) {
  const auto plain = [](auto value) { return static_cast<double>(value); };
  switch (tensor.dtype) {
    case DType::kF64: return convert_elements<double>(tensor, plain);
    case DType::kF32: return convert_elements<float>(tensor, plain);
    case DType::kF16: return convert_elements<uint16_t>(tensor, half_to_double);
    case DType::kBF16: return convert_elements<uint16_t>(tensor, bfloat16_to_double);
    case DType::kI64: return convert_elements<int64_t>(tensor, plain);
    case DType::kI32: return convert_elements<int32_t>(tensor, plain);
    case DType::kI16: return convert_elements<int16_t>(tensor, plain);
    case DType::kI8: return convert_elements<int8_t>(tensor, plain);
    case DType::kU8: return convert_elements<uint8_t>(tensor, plain);
    case DType::kBool: return convert_elements<uint8_t>(tensor, [](uint8_t value) { return value == 0 ? 0.0 : 1.0; });
  }
  throw std::invalid_argument("to_double: dtype " + std::to_string(static_cast<int>(tensor.dtype)) + " is none of DType");
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile result;
  result.path_ = path;
  result.file_ = MappedFile(path);
  const std::span<const std::byte> file = result.file_.bytes();
  const std::span<const std::byte> header = find_header(path, file);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + header.size());

  HeaderHandler handler(path);
  const auto* text = reinterpret_cast<const char*>(header.data());
  Json::sax_parse(text, text + header.size(), &handler);
  std::vector<Entry> entries = handler.take_entries();
  check_sizes(path, entries, data.size());
  check_coverage(path, entries, data.size());

  result.metadata_ = handler.take_metadata();
  result.names_.reserve(entries.size());
  for (Entry& entry : entries) {
    TensorView view = {entry.dtype, std::move(entry.shape), data.data() + entry.begin, entry.end - entry.begin};
    result.tensors_.emplace(entry.name, std::move(view));
    result.names_.push_back(std::move(entry.name));
  }
  return result;
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw FileError(path_, "has no tensor " + printable(name) + " among its " + std::to_string(names_.size()));
  }
  return found->second;
}

const TensorView& SafetensorsFile::at(std::string_view name, DType dtype) const {
  const TensorView& tensor = at(name);
  if (tensor.dtype != dtype) {
    throw FileError(path_, "tensor " + printable(name) + ": dtype is " + std::string(dtype_name(tensor.dtype)) + "; wanted " +
                               std::string(dtype_name(dtype)));
  }
  return tensor;
}

void SafetensorsFile::copy_to(std::string_view name, DType dtype, std::span<std::byte> destination) const {
  const TensorView& tensor = at(name, dtype);
  if (tensor.bytes != destination.size()) {
    throw FileError(path_, "tensor " + printable(name) + ": shape " + shape_text(tensor.shape) + " has " + std::to_string(tensor.bytes) +
                               " bytes; wanted " + std::to_string(destination.size()));
  }
  if (!destination.empty()) {
    std::memcpy(destination.data(), tensor.data, tensor.bytes);
  }
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_writable(path, tensors);
  const std::string header = make_header(path, tensors, metadata);
  std::array<std::byte, kLengthBytes> length = {};
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  }
  AtomicFile file(path);
  file.write(length);
  file.write(std::as_bytes(std::span(header)));
  for (const NamedTensor& named : tensors) {
    file.write({named.tensor.data, named.tensor.bytes});
  }
  file.commit();
}

}  // namespace cyfa::io
