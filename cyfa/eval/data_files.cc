// See data_files.h.
#include "cyfa/eval/data_files.h"

#include <zstd.h>

#include <charconv>

#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/io/json.h"
#include "cyfa/io/read_file.h"

namespace cyfa::eval {
namespace {

constexpr size_t kMostText = size_t{4} << 30;  // bytes of a file, decompressed
constexpr io::JsonLimits kRow{.what = "a line of JSON", .bytes = 256 << 20, .values = 1 << 20, .depth = 16};

std::string decompressed(const std::filesystem::path& path, std::string_view packed) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  std::string text, step(ZSTD_DStreamOutSize(), '\0');
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  size_t left = 1;  // 0 at the end of a frame
  while (in.pos < in.size || left != 0) {
    ZSTD_outBuffer out{step.data(), step.size(), 0};
    const size_t before = in.pos;
    left = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(left) != 0) throw io::FileError(path, std::string("is damaged: zstd says ") + ZSTD_getErrorName(left));
    if (out.pos == 0 && in.pos == before) throw io::FileError(path, "ends in the middle of a zstd frame; fetch it again");
    text.append(step, 0, out.pos);
    if (text.size() > kMostText) throw io::FileError(path, "holds more than 4 GiB of text, more than any file of a task");
  }
  return text;
}

const Json& value_of(const Json& row, const char* key) {
  if (!row.is_object()) throw RowError("is not a JSON object");
  const auto found = row.find(key);
  if (found == row.end()) throw RowError(std::string("has no key \"") + key + "\"");
  return *found;
}

[[noreturn]] void wrong_type(const char* key, const Json& value, const char* wanted) {
  throw RowError(std::string("has ") + value.type_name() + " at \"" + key + "\"; wanted " + wanted);
}

}  // namespace

std::optional<std::filesystem::path> DataFiles::path_of(const TaskFile& file) const {
  if (folder_.empty()) return std::nullopt;
  for (const std::string& name : file.names) {
    for (const char* ending : {"", ".zst"}) {
      const std::filesystem::path path = folder_ / (name + ending);
      if (std::filesystem::exists(path)) return path;
    }
  }
  return std::nullopt;
}

bool DataFiles::has(const TaskFile& file) const { return path_of(file).has_value(); }

std::string DataFiles::missing(const TaskFile& file) const {
  if (has(file)) return "";
  std::string words =
      folder_.empty() ? "is needed, and no data folder is named (--data DIR, or the variable CYFA_EVAL_DATA)" : "is missing";
  for (size_t i = 1; i < file.names.size(); ++i) words += (i == 1 ? "; so is " : ", ") + file.names[i];
  return words + ". It is " + file.home + ", saved as " + file.format + "; .zst is read too";
}

std::filesystem::path DataFiles::find(const TaskFile& file) const {
  if (const auto path = path_of(file)) return *path;
  throw io::FileError(folder_ / file.names.front(), missing(file));
}

std::string DataFiles::text(const std::filesystem::path& path) {
  std::string bytes = io::read_file(path, kMostText, "a file of a task");
  if (path.extension() == ".zst") bytes = decompressed(path, bytes);
  hashes_[path.filename().string()] = io::hash64(bytes);
  return bytes;
}

void DataFiles::lines(const std::filesystem::path& path, const std::function<void(const Json& row)>& each) {
  each_line(path, [&](std::string_view line, const std::string& where) {
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) each(io::parse_json(line, where, kRow));
  });
}

void DataFiles::text_lines(const std::filesystem::path& path, const std::function<void(std::string line)>& each) {
  each_line(path, [&](std::string_view line, const std::string&) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) each(std::string(line));
  });
}

void DataFiles::each_line(const std::filesystem::path& path,
                          const std::function<void(std::string_view line, const std::string& where)>& each) {
  const std::string all = text(path);
  if (all.empty()) throw io::FileError(path, "is empty");
  int64_t number = 0;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string where = path.string() + ", line " + std::to_string(++number);
    try {
      each(std::string_view(all).substr(begin, end - begin), where);
    } catch (const RowError& error) {
      throw io::FileError(where, error.what());
    }
    begin = end + 1;
  }
}

std::string text_field(const Json& row, const char* key) {
  const Json& value = value_of(row, key);
  if (!value.is_string()) wrong_type(key, value, "a string");
  return value.get<std::string>();
}

std::vector<std::string> list_field(const Json& row, const char* key) {
  const Json& value = value_of(row, key);
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) wrong_type(key, value, "a list of strings");
  std::vector<std::string> list;
  for (const Json& item : value) {
    if (!item.is_string()) wrong_type(key, item, "strings in the list");
    list.push_back(item.get<std::string>());
  }
  return list;
}

int64_t integer_field(const Json& row, const char* key) {
  const Json& value = value_of(row, key);
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return number;
  }
  wrong_type(key, value, "an integer");
}

}  // namespace cyfa::eval
