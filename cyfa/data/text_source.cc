// See text_source.h.
#include "cyfa/data/text_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "cyfa/data/tokenizer.h"
#include "cyfa/data/utf8.h"
#include "cyfa/io/file_error.h"

namespace cyfa {
namespace {

constexpr size_t kReadStep = 256 << 10;
constexpr size_t kLooked = 64 << 10;     // bytes of a text in which zero bytes are looked for
constexpr size_t kMostPieces = 1 << 14;  // limit for blocks of very short lines
constexpr const char* kWanted = "wanted .txt, .jsonl, .txt.zst or .jsonl.zst";

struct Kind {
  std::string_view ending;
  bool lines, compressed;
};
constexpr Kind kKinds[] = {{".txt", false, false}, {".jsonl", true, false}, {".txt.zst", false, true}, {".jsonl.zst", true, true}};

const Kind* kind_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  for (const Kind& kind : kKinds) {
    if (name.size() > kind.ending.size() && name.ends_with(kind.ending)) return &kind;
  }
  return nullptr;
}

InputFile input_file(const std::filesystem::path& path, const Kind& kind) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) throw io::system_error(path, "stat", errno);
  if (!S_ISREG(status.st_mode)) throw io::FileError(path, "is not a regular file");
  return {path, status.st_size, status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec, kind.lines, kind.compressed};
}

// Finds the files to read below a folder, and counts what is none.
class FolderSearch {
 public:
  FolderSearch(const std::filesystem::path& folder, PassedOver& passed) : top_(folder), passed_(passed) {
    std::vector<std::filesystem::path> folders = {folder};
    while (!folders.empty()) {
      const std::filesystem::path next = std::move(folders.back());
      folders.pop_back();
      list(next, folders);
    }
    std::sort(found_.begin(), found_.end(), [](const InputFile& a, const InputFile& b) { return a.path < b.path; });
  }

  void append_to(std::vector<InputFile>& files) {
    if (found_.empty()) {
      const std::string others = passed_.total() == 0 ? "" : "; passed over: " + passed_.text();
      throw io::FileError(top_, std::string("holds no file to read; ") + kWanted + others);
    }
    files.insert(files.end(), std::make_move_iterator(found_.begin()), std::make_move_iterator(found_.end()));
  }

 private:
  void pass(int64_t& count, const std::filesystem::path& path, const std::string& reason) {
    ++count;
    if (passed_.names.size() < PassedOver::kMostNamed) passed_.names.push_back(path.string() + " (" + reason + ")");
  }

  void list(const std::filesystem::path& folder, std::vector<std::filesystem::path>& folders) {
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) look_at(*entry, folders);
    if (!error) return;
    if (folder == top_) throw io::FileError(folder, "cannot be listed: " + error.message());
    pass(passed_.unreadable, folder, "cannot be listed: " + error.message());
  }

  void look_at(const std::filesystem::directory_entry& entry, std::vector<std::filesystem::path>& folders) {
    const std::filesystem::path& path = entry.path();
    if (path.filename().string().starts_with('.')) return pass(passed_.hidden, path, "hidden");
    std::error_code error;
    const bool link = entry.is_symlink(error);
    const std::filesystem::file_status status = entry.status(error);  // of what a link leads to
    if (error && link) return pass(passed_.links, path, "a link that leads nowhere");
    if (error) return pass(passed_.unreadable, path, error.message());
    if (std::filesystem::is_directory(status) && link) return pass(passed_.links, path, "a link to a folder");
    if (std::filesystem::is_directory(status)) return folders.push_back(path);
    if (!std::filesystem::is_regular_file(status)) return pass(passed_.special, path, "not a regular file");
    const Kind* kind = kind_of(path);
    if (kind == nullptr) return pass(passed_.unknown, path, "unknown ending");
    if (::access(path.c_str(), R_OK) != 0) return pass(passed_.unreadable, path, std::generic_category().message(errno));
    found_.push_back(input_file(path, *kind));
  }

  std::filesystem::path top_;
  PassedOver& passed_;
  std::vector<InputFile> found_;
};

bool blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// Thrown for unreadable compressed data, and caught by the reader.
struct Damage {
  std::string text;
};

}  // namespace

std::string PassedOver::text() const {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  const int64_t more = total() - static_cast<int64_t>(names.size());
  return more > 0 ? list + " and " + std::to_string(more) + " more" : list;
}

std::vector<InputFile> find_inputs(const std::vector<std::string>& names, PassedOver& passed) {
  std::vector<InputFile> files;
  for (const std::string& name : names) {
    const std::filesystem::path path = name;
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      FolderSearch(path, passed).append_to(files);
      continue;
    }
    if (!std::filesystem::exists(path, error)) throw io::FileError(path, "is not there");
    const Kind* kind = kind_of(path);
    if (kind == nullptr) throw io::FileError(path, std::string("has an ending that says nothing about its format; ") + kWanted);
    files.push_back(input_file(path, *kind));
  }
  return files;
}

// The text of one file, from its beginning or from a position.
class TextReader::Source {
 public:
  explicit Source(const InputFile& input) : input_(input), fd_(::open(input.path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw io::system_error(input.path, "open", errno);
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
    if (input.compressed) {
      stream_.reset(ZSTD_createDStream());
      if (stream_ == nullptr) throw std::bad_alloc();
      compressed_.resize(ZSTD_DStreamInSize());
    }
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    if (fd_ >= 0) ::close(fd_);
  }

  int64_t consumed() const { return consumed_; }

  // Reads up to `size` bytes of text; 0 at the end. Throws Damage, once all text before it has been read.
  size_t read(char* to, size_t size) {
    if (!input_.compressed) return read_file(to, size);
    ZSTD_outBuffer out = {to, size, 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size) in_ = {compressed_.data(), read_file(compressed_.data(), compressed_.size()), 0};
      const bool ended = in_.size == 0;
      if (ended && !inside_frame_) return 0;
      // zstd drops what it has decompressed in a call that fails, so a call gets the bytes of one block and not the header of the next.
      ZSTD_inBuffer part = {in_.src, std::min(in_.size, in_.pos + wanted_), in_.pos};
      const size_t left = ZSTD_decompressStream(stream_.get(), &out, &part);
      in_.pos = part.pos;
      if (ZSTD_isError(left) != 0U) {
        const int64_t place = consumed_ - static_cast<int64_t>(in_.size - in_.pos);
        throw Damage{std::string("zstd: ") + ZSTD_getErrorName(left) + " at about byte " + std::to_string(place) + " of the file"};
      }
      inside_frame_ = left != 0;
      wanted_ = !inside_frame_ ? kFrameStart : left > kBlockHeader ? left - kBlockHeader : left;
      if (ended && out.pos == 0) throw Damage{"the file ends inside a zstd frame"};
    }
    return out.pos;
  }

  void skip(int64_t bytes) {
    if (!input_.compressed) {
      if (::lseek(fd_, bytes, SEEK_SET) < 0) throw io::system_error(input_.path, "lseek", errno);
      consumed_ = bytes;
      return;
    }
    std::vector<char> dropped(kReadStep);
    while (bytes > 0) {
      const size_t count = read(dropped.data(), static_cast<size_t>(std::min<int64_t>(bytes, static_cast<int64_t>(dropped.size()))));
      if (count == 0) throw changed();
      bytes -= static_cast<int64_t>(count);
    }
  }

 private:
  io::FileError changed() const { return {input_.path, "has changed since the run began"}; }

  size_t read_file(char* to, size_t size) {
    for (;;) {
      const ssize_t count = ::read(fd_, to, size);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw io::system_error(input_.path, "read", errno);
      consumed_ += count;
      if (consumed_ > input_.bytes || (count == 0 && consumed_ != input_.bytes)) throw changed();
      return static_cast<size_t>(count);
    }
  }

  struct FreeStream {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };

  InputFile input_;
  int fd_;
  int64_t consumed_ = 0;
  std::unique_ptr<ZSTD_DStream, FreeStream> stream_;
  std::vector<char> compressed_;
  static constexpr size_t kFrameStart = 5;   // bytes that zstd asks for at the beginning of a frame
  static constexpr size_t kBlockHeader = 3;  // zstd asks for a block together with the header of the next
  ZSTD_inBuffer in_ = {nullptr, 0, 0};
  size_t wanted_ = kFrameStart;  // bytes for the next call
  bool inside_frame_ = false;
};

TextReader::TextReader(std::vector<InputFile> inputs, const TextPosition& begin) : inputs_(std::move(inputs)), position_(begin) {
  for (size_t i = 0; i < inputs_.size() && static_cast<int64_t>(i) < begin.file; ++i) closed_bytes_ += inputs_[i].bytes;
}

TextReader::~TextReader() = default;

bool TextReader::next(TextBlock& block) {
  block.bytes.clear();
  block.pieces.clear();
  while (block.bytes.size() < kPiece && block.pieces.size() < kMostPieces && step(block)) {
  }
  block.consumed = closed_bytes_ + (source_ ? source_->consumed() : 0);
  return !block.pieces.empty();
}

bool TextReader::step(TextBlock& block) {
  if (position_.file >= static_cast<int64_t>(inputs_.size())) return false;
  if (!source_) open();
  if (inputs_[static_cast<size_t>(position_.file)].lines) {
    step_lines(block);
  } else {
    step_text(block);
  }
  return true;
}

void TextReader::open() {
  const InputFile& input = inputs_[static_cast<size_t>(position_.file)];
  source_ = std::make_unique<Source>(input);
  pending_.clear();
  skipping_ = false;
  try {
    if (position_.offset > 0) source_->skip(position_.offset);
  } catch (const Damage& damage) {
    throw io::FileError(input.path, "cannot be read again up to the place where the last run ended: " + damage.text);
  }
}

void TextReader::close() {
  closed_bytes_ += inputs_[static_cast<size_t>(position_.file)].bytes;
  source_.reset();
  pending_.clear();
  position_ = {position_.file + 1, 0, 0, false};
}

bool TextReader::fill(size_t bytes, std::string& damage) {
  const size_t before = pending_.size();
  pending_.resize(before + bytes);
  size_t count = 0;
  try {
    count = source_->read(pending_.data() + before, bytes);
  } catch (const Damage& problem) {
    damage = problem.text + "; the rest of the file is left out";
  }
  pending_.resize(before + count);
  return count > 0;
}

void TextReader::add_damage(TextBlock& block, const std::string& damage, const TextPosition& next) {
  TextPiece piece;
  piece.begin = block.bytes.size();
  piece.starts = !position_.inside;
  piece.at = position_;
  piece.next = next;
  piece.damage = damage;
  block.pieces.push_back(std::move(piece));
}

void TextReader::step_text(TextBlock& block) {
  std::string damage;
  // Reads one byte more than a piece, to know whether the text continues.
  while (pending_.size() <= kPiece && fill(kPiece + 1 - pending_.size(), damage)) {
  }
  const TextPosition next_file = {position_.file + 1, 0, 0, false};
  if (position_.offset == 0 && std::string_view(pending_).substr(0, kLooked).find('\0') != std::string_view::npos) {
    add_damage(block, "has zero bytes: not a text in UTF-8, but in UTF-16 or binary; the file is left out", next_file);
    return close();
  }
  const bool ends = pending_.size() <= kPiece && damage.empty();
  const size_t length = !damage.empty() ? whole_characters(pending_)
                        : ends          ? pending_.size()
                                        : cut_text(std::string_view(pending_).substr(0, kPiece));
  if (length > 0 || ends) {
    TextPiece piece;
    piece.begin = block.bytes.size();
    piece.length = length;
    piece.starts = !position_.inside;
    piece.ends = ends;
    piece.at = position_;
    piece.next = ends ? next_file : TextPosition{position_.file, position_.offset + static_cast<int64_t>(length), 0, true};
    block.bytes.append(pending_, 0, length);
    block.pieces.push_back(piece);
    if (ends) return close();
    pending_.erase(0, length);
    position_ = piece.next;
  }
  if (damage.empty()) return;
  add_damage(block, damage, next_file);
  close();
}

void TextReader::add_line(TextBlock& block, size_t begin, size_t end) {
  const std::string_view line = std::string_view(pending_).substr(begin, end - begin);
  TextPiece piece;
  piece.begin = block.bytes.size();
  piece.length = line.size();
  piece.line = true;
  piece.at = position_;
  position_.offset += static_cast<int64_t>(line.size());
  ++position_.line;
  piece.next = position_;
  if (blank(line)) return;
  block.bytes.append(line);
  block.pieces.push_back(std::move(piece));
}

void TextReader::step_lines(TextBlock& block) {
  const size_t before = pending_.size();  // contains no end of line
  std::string damage;
  const bool more = fill(kReadStep, damage);
  size_t begin = 0, look = before;
  while (look < pending_.size()) {
    const size_t found = pending_.find('\n', look);
    if (found == std::string::npos) break;
    const size_t end = found + 1;
    if (skipping_) {
      skipping_ = false;
      position_.offset += static_cast<int64_t>(end - begin);
      ++position_.line;
    } else {
      add_line(block, begin, end);
    }
    begin = look = end;
  }
  pending_.erase(0, begin);
  if (!damage.empty()) {
    add_damage(block, damage, {position_.file + 1, 0, 0, false});
    return close();
  }
  if (pending_.size() > kMostLine || (skipping_ && !pending_.empty())) {
    if (!skipping_) add_damage(block, "the line is longer than " + std::to_string(kMostLine >> 20) + " MiB", position_);
    skipping_ = true;
    position_.offset += static_cast<int64_t>(pending_.size());
    pending_.clear();
  }
  if (more) return;
  if (!pending_.empty()) add_line(block, 0, pending_.size());
  close();
}

}  // namespace cyfa
