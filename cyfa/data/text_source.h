// Reads documents from .txt files (one document each) and .jsonl files (one per line), plain or zstd-compressed, in pieces of bounded size.
// Used by prepare.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace cyfa {

// A file to read.
struct InputFile {
  std::filesystem::path path;
  int64_t bytes = 0;
  int64_t modified = 0;  // modification time in nanoseconds
  bool lines = false;    // .jsonl
  bool compressed = false;
};

// What a search of folders has passed over.
struct PassedOver {
  static constexpr size_t kMostNamed = 10;

  int64_t hidden = 0;              // files and folders whose names begin with a dot
  int64_t unknown = 0;             // files with other endings
  int64_t links = 0;               // symbolic links to folders, which may lead in circles, and to nothing
  int64_t special = 0;             // pipes, sockets, devices
  int64_t unreadable = 0;          // files and folders without permission, and other errors of the file system
  std::vector<std::string> names;  // of the first kMostNamed, with the reason

  int64_t total() const { return hidden + unknown + links + special + unreadable; }
  std::string text() const;  // the names, and the number of further ones
};

// The named files and the files in the named folders: in the order of the names, and within a folder in the order of paths. Symbolic links
// to files are followed. What a folder holds besides is added to `passed`. Throws io::FileError for a name that does not exist or has an
// unknown ending, and for a folder without any suitable file.
std::vector<InputFile> find_inputs(const std::vector<std::string>& names, PassedOver& passed);

// A position between two pieces, from which reading can resume.
struct TextPosition {
  int64_t file = 0;     // index of the input
  int64_t offset = 0;   // bytes of its text, after decompression
  int64_t line = 0;     // lines before it
  bool inside = false;  // the next piece continues a document

  bool operator==(const TextPosition&) const = default;
};

// A line of JSON, a whole text, or a part of a long text (see cut_text()).
struct TextPiece {
  size_t begin = 0, length = 0;     // in TextBlock::bytes
  bool line = false;                // a line of JSON
  bool starts = true, ends = true;  // the piece begins and ends a document
  TextPosition at, next;            // positions of this piece and of the next
  std::string damage;               // why the piece has no text; empty if it has
};

// Consecutive pieces.
struct TextBlock {
  std::string bytes;
  std::vector<TextPiece> pieces;
  int64_t consumed = 0;  // bytes of the input files up to the end of this block
};

// Reads the inputs in order, from a position on.
class TextReader {
 public:
  static constexpr size_t kPiece = 1 << 20;      // bytes per part of a long text: fixed, because the cuts depend on it
  static constexpr size_t kMostLine = 64 << 20;  // longer lines are reported as damaged

  TextReader(std::vector<InputFile> inputs, const TextPosition& begin);
  ~TextReader();

  // Fills the block with about kPiece bytes; false at the end of the inputs. Pieces do not depend on their grouping in blocks. Throws
  // io::FileError for a file that cannot be read or has changed since find_inputs; damaged contents are reported in a piece.
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
  bool fill(size_t bytes, std::string& damage);  // appends up to `bytes` to pending_; false at the end of the file

  std::vector<InputFile> inputs_;
  TextPosition position_;  // of the first byte of pending_
  std::unique_ptr<Source> source_;
  std::string pending_;       // text that has been read and not been returned
  bool skipping_ = false;     // inside a line that is too long
  int64_t closed_bytes_ = 0;  // bytes of the inputs before the current one
};

}  // namespace cyfa
