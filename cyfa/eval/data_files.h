// The files that tasks read: found under several names, plain or zstd-compressed, and hashed for the manifest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace cyfa::eval {

using Json = nlohmann::ordered_json;

// A file of a task.
struct TaskFile {
  std::vector<std::string> names;  // under the data folder, without .zst; the first that exists is read
  std::string home;                // where it comes from: "allenai/ai2_arc (ARC-Easy, test) on Hugging Face"
  std::string format;              // "JSON lines with question, choices, answerKey"
};

class DataFiles {
 public:
  // `folder` may be empty: then every file of a task is missing, with an error that says how to name the folder.
  explicit DataFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // The path of a file, with or without .zst. Throws io::FileError that names the home and format of a missing one.
  std::filesystem::path find(const TaskFile& file) const;
  bool has(const TaskFile& file) const;
  // What find() says of a missing file; empty for one that is there.
  std::string missing(const TaskFile& file) const;
  const std::filesystem::path& folder() const { return folder_; }

  // The text of a file, decompressed if its name ends in .zst.
  std::string text(const std::filesystem::path& path);
  // Calls `each` for every line of JSON in it. An io::FileError that `each` or a bad line causes names the line. A missing key, or one of
  // another type, is reported with the line by field() and the like below.
  void lines(const std::filesystem::path& path, const std::function<void(const Json& row)>& each);
  // The same for lines of plain text; empty ones are left out.
  void text_lines(const std::filesystem::path& path, const std::function<void(std::string line)>& each);

  // The hash of the text of every file read so far, by name, and of texts that come with the program, by the name given here.
  const std::map<std::string, uint64_t>& hashes() const { return hashes_; }
  void add_hash(const std::string& name, uint64_t hash) { hashes_[name] = hash; }

 private:
  std::optional<std::filesystem::path> path_of(const TaskFile& file) const;
  void each_line(const std::filesystem::path& path, const std::function<void(std::string_view line, const std::string& where)>& each);

  std::filesystem::path folder_;
  std::map<std::string, uint64_t> hashes_;
};

// Thrown by the functions below, and by tasks for a row that they cannot use; DataFiles::lines() adds the file and the line.
class RowError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The value of a key of a row. Throw RowError if it is missing or of another type.
std::string text_field(const Json& row, const char* key);
std::vector<std::string> list_field(const Json& row, const char* key);  // of strings; a single string is a list of one
int64_t integer_field(const Json& row, const char* key);                // a number, or a string of digits

}  // namespace cyfa::eval
