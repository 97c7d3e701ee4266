// A memory-mapped folder of tokens made by `cyfa prepare`. Used by training and by the program. docs/data.md describes the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cyfa/io/json.h"
#include "cyfa/io/mapped_file.h"

namespace cyfa {

// Limits of manifest.json and progress.json: room for 300,000 shards.
inline constexpr io::JsonLimits kManifestLimits = {.what = "a manifest of tokens", .bytes = 64 << 20, .values = 1 << 21, .depth = 8};

// What was left out of the folder, or changed on the way in.
struct DataLosses {
  int64_t damaged = 0;   // lines, and ends of files, that could not be read
  int64_t empty = 0;     // documents without text
  int64_t repaired = 0;  // documents with invalid UTF-8, which became U+FFFD

  bool operator==(const DataLosses&) const = default;
};

// A shard in the manifest: a file of tokens, a file of document starts and a file of block hashes.
struct ShardEntry {
  int64_t tokens = 0;
  int64_t documents = 0;                    // documents that start in this shard
  uint64_t tokens_checksum = 0;             // Checksum of the file of tokens
  uint64_t documents_checksum = 0;          // Checksum of the file of document starts
  std::optional<uint64_t> blocks_checksum;  // Checksum of the file of block hashes; absent in folders that have none

  bool operator==(const ShardEntry&) const = default;
};

// manifest.json: everything about the folder except the tokens. It contains no path and no time, so equal data has an equal manifest.
struct TokenManifest {
  static constexpr int64_t kVersion = 1;

  std::string tokenizer;  // "bytes", or the name of the tokenizer's file in the same folder
  uint64_t tokenizer_hash = 0;
  int64_t vocab_size = 0;
  std::optional<int64_t> begin_mark, end_mark;  // BOS and EOS tokens around every document
  std::vector<ShardEntry> shards;
  int64_t input_files = 0;
  int64_t input_bytes = 0;
  DataLosses losses;

  // Sums over the shards.
  int64_t tokens() const;
  int64_t documents() const;
  // Bytes of a stored token.
  int64_t token_bytes() const { return vocab_size <= 65536 ? 2 : 4; }
  // Block hashes of a shard: one for each whole block of its tokens.
  int64_t block_hashes(size_t shard) const;

  nlohmann::ordered_json json() const;
  std::string text() const;  // of the file: json(), indented
  // Throws io::FileError for `path` if a key is missing or out of range, or the totals are not the sums of the shards.
  static TokenManifest parse(const nlohmann::ordered_json& json, const std::filesystem::path& path);
};

// The files of a shard: "shard-00012.tokens", "shard-00012.documents" and "shard-00012.blocks".
std::string tokens_file(size_t shard);
std::string documents_file(size_t shard);
std::string blocks_file(size_t shard);

// A checksum of a file that may be written and read in parts: hash64 over blocks of 1 MiB, each seeded with the hash of the previous ones.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  uint64_t value() const;
  // The hash after each whole block. With the one before it as the seed, a block can be checked without those in front of it.
  const std::vector<uint64_t>& blocks() const { return blocks_; }

 private:
  void add_block(std::span<const std::byte> block);

  std::vector<std::byte> block_;
  std::vector<uint64_t> blocks_;
  uint64_t hash_ = 0;
};

// The Checksum of a whole file.
uint64_t checksum(std::span<const std::byte> bytes);

// How much of a folder TokenData::check() reads.
struct DataCheck {
  int64_t whole_bytes = int64_t{1} << 30;     // all of it, if the files of tokens are no larger than this
  int64_t sample_bytes = int64_t{256} << 20;  // else about this many bytes, in blocks spread over every shard
};

// What check() has read.
struct DataChecked {
  enum class Extent { kWhole, kSampled, kNothing };  // kNothing: too large to read whole, and without block hashes
  Extent extent = Extent::kWhole;
  int64_t bytes = 0, all = 0;  // of the files of tokens
};

// The tokens of all shards, concatenated. Thread-safe for reading.
class TokenData {
 public:
  // Throws io::FileError naming the file. Compares the size of every file with the manifest; tokens and document starts are validated when
  // they are read.
  static TokenData open(const std::filesystem::path& folder);

  int64_t tokens() const { return begins_.back(); }
  int64_t documents() const { return documents_; }
  int64_t vocab_size() const { return manifest_.vocab_size; }
  uint64_t hash() const { return hash_; }  // of the manifest, and thereby of everything that its checksums cover
  const std::string& tokenizer() const { return manifest_.tokenizer; }
  uint64_t tokenizer_hash() const { return manifest_.tokenizer_hash; }
  // Argument for load_tokenizer: "bytes", or the path of the tokenizer in the folder.
  std::string tokenizer_file() const;
  const TokenManifest& manifest() const { return manifest_; }
  const std::filesystem::path& folder() const { return folder_; }

  // Reads tokens begin .. begin + to.size() - 1. Throws std::out_of_range, and io::FileError for a token beyond the vocabulary.
  void read(int64_t begin, std::span<int64_t> to) const;

  // Positions in [begin, end) where a document starts, increasing. Throws std::out_of_range, and io::FileError if stored starts are not
  // increasing.
  std::vector<int64_t> document_starts(int64_t begin, int64_t end) const;

  // Compares the tokens with the manifest's checksums: all of them with the document starts, or a sample. Throws io::FileError at the first
  // difference.
  DataChecked check(const DataCheck& how = {}) const;

  // Reads everything and checks checksums, the range of tokens, document starts and the tokenizer's hash. Throws io::FileError at the first
  // error.
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
  io::MappedFile checked_blocks(size_t shard) const;
  void check_whole() const;
  int64_t check_sample(size_t shard, int64_t blocks) const;

  std::filesystem::path folder_;
  TokenManifest manifest_;
  uint64_t hash_ = 0;
  int64_t documents_ = 0;
  std::vector<int64_t> begins_;  // first token of each shard, and the number of all tokens
  std::vector<Shard> shards_;
};

}  // namespace cyfa
