// A folder of tokens made by `cyfa prepare`, memory-mapped. docs/data.md describes the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cyfa/io/mapped_file.h"

namespace cyfa {

// What was left out of a folder of tokens, or changed on the way in.
struct DataLosses {
  int64_t damaged = 0;   // lines and ends of files that could not be read
  int64_t empty = 0;     // documents without text
  int64_t repaired = 0;  // documents with bytes that are no UTF-8, which became U+FFFD

  bool operator==(const DataLosses&) const = default;
};

struct ShardEntry {
  int64_t tokens = 0;
  int64_t documents = 0;         // that start in this shard
  uint64_t tokens_checksum = 0;  // of the two files, by Checksum
  uint64_t documents_checksum = 0;

  bool operator==(const ShardEntry&) const = default;
};

// manifest.json: everything about a folder of tokens but the tokens. It names no path and no time: equal data has an equal manifest.
struct TokenManifest {
  static constexpr int64_t kVersion = 1;

  std::string tokenizer;  // "bytes", or the name of the model's file in the same folder
  uint64_t tokenizer_hash = 0;
  int64_t vocab_size = 0;
  std::optional<int64_t> begin_mark, end_mark;  // around every document
  std::vector<ShardEntry> shards;
  int64_t input_files = 0;
  int64_t input_bytes = 0;
  DataLosses losses;

  int64_t tokens() const;
  int64_t documents() const;
  int64_t token_bytes() const { return vocab_size <= 65536 ? 2 : 4; }

  std::string json() const;
  // Throws io::FileError with `path`: not JSON, a key that is missing or out of range, totals that are no sums.
  static TokenManifest parse(std::string_view json, const std::filesystem::path& path);
};

// "shard-00012.tokens" and "shard-00012.documents"
std::string tokens_file(size_t shard);
std::string documents_file(size_t shard);

// hash64 over blocks of 1 MiB, each seeded with the hash of those before it, so that a file may be written and read in pieces.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  uint64_t value() const;

 private:
  std::vector<std::byte> block_;
  uint64_t hash_ = 0;
};

uint64_t checksum(std::span<const std::byte> bytes);

// All shards in order, as one stream. Any number of threads may read at a time.
class TokenData {
 public:
  // Throws io::FileError that names the file. Sizes and counts of all files are compared with the manifest here; tokens and document
  // starts are checked as they are read.
  static TokenData open(const std::filesystem::path& folder);

  int64_t tokens() const { return begins_.back(); }
  int64_t documents() const { return documents_; }
  int64_t vocab_size() const { return manifest_.vocab_size; }
  uint64_t hash() const { return hash_; }  // of the manifest, and so of all that it holds checksums of
  const std::string& tokenizer() const { return manifest_.tokenizer; }
  uint64_t tokenizer_hash() const { return manifest_.tokenizer_hash; }
  // For load_tokenizer: "bytes", or the path of the model in the folder.
  std::string tokenizer_file() const;
  const TokenManifest& manifest() const { return manifest_; }
  const std::filesystem::path& folder() const { return folder_; }

  // Tokens begin .. begin + to.size() of the stream. Throws std::out_of_range, and io::FileError for a token beyond the vocabulary.
  void read(int64_t begin, std::span<int64_t> to) const;

  // Positions in [begin, end) where a document starts, rising. Throws std::out_of_range, and io::FileError for starts that do not rise.
  std::vector<int64_t> document_starts(int64_t begin, int64_t end) const;

  // Reads everything: checksums, tokens within the vocabulary, document starts, the tokenizer's hash. Throws io::FileError at the first
  // thing that is wrong.
  void verify() const;

 private:
  struct Shard {
    io::MappedFile tokens, documents;
  };

  TokenData() = default;
  std::filesystem::path tokens_path(size_t shard) const { return folder_ / tokens_file(shard); }
  size_t shard_of(int64_t position) const;
  void check_range(int64_t begin, int64_t end) const;
  void check_starts(size_t shard) const;

  std::filesystem::path folder_;
  TokenManifest manifest_;
  uint64_t hash_ = 0;
  int64_t documents_ = 0;
  std::vector<int64_t> begins_;  // of each shard in the stream, and the end
  std::vector<Shard> shards_;
};

}  // namespace cyfa
