// Documents out of files: .txt (a file is a document) and .jsonl (a line is one), plain or compressed by zstd, in pieces of bounded size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace cyfa {

struct InputFile {
  std::filesystem::path path;
  int64_t bytes = 0;
  int64_t modified = 0;  // in the file system's own units
  bool lines = false;    // .jsonl
  bool compressed = false;
};

// The files named, and those in folders named, in the order of the names and below a folder in the order of the paths. Throws io::FileError
// for what is not there, what is no such file, and a folder without any.
std::vector<InputFile> find_inputs(const std::vector<std::string>& names);

// A place between two pieces, from which reading can begin again.
struct TextPosition {
  int64_t file = 0;     // index of the input
  int64_t offset = 0;   // bytes of its text, decompressed
  int64_t line = 0;     // lines before it
  bool inside = false;  // the next piece goes on with a document

  bool operator==(const TextPosition&) const = default;
};

// A line of JSON, a text, or a part of a long text, cut by cut_text().
struct TextPiece {
  size_t begin = 0, length = 0;  // in TextBlock::bytes
  bool line = false;
  bool starts = true, ends = true;  // a document
  TextPosition at, next;
  std::string damage;  // why there is nothing to read
};

struct TextBlock {
  std::string bytes;
  std::vector<TextPiece> pieces;
  int64_t consumed = 0;  // bytes of input files up to here
};

class TextReader {
 public:
  static constexpr size_t kPiece = 1 << 20;      // bytes of a part of a text: fixed, since the cuts depend on it
  static constexpr size_t kMostLine = 64 << 20;  // a longer line is damaged

  TextReader(std::vector<InputFile> inputs, const TextPosition& begin);
  ~TextReader();

  // Fills the block with about kPiece bytes; false: there are no more. Pieces do not depend on how they fall into blocks. Throws
  // io::FileError for a file that cannot be read or has changed since find_inputs; damage to its contents is a piece.
  bool next(TextBlock& block);

 private:
  class Source;

  bool step(TextBlock& block);
  void open();
  void close();
  void step_text(TextBlock& block);
  void step_lines(TextBlock& block);
  void add_line(TextBlock& block, size_t begin, size_t end);
  void add_damage(TextBlock& block, const std::string& damage, const TextPosition& next);
  bool fill(size_t bytes, std::string& damage);  // appends up to `bytes` to pending_; false at the end

  std::vector<InputFile> inputs_;
  TextPosition position_;  // of pending_'s beginning
  std::unique_ptr<Source> source_;
  std::string pending_;
  bool skipping_ = false;  // the rest of a line that is too long
  int64_t closed_bytes_ = 0;
};

}  // namespace cyfa
