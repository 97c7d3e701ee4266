// See token_data.h.
#include "cyfa/data/token_data.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cyfa/data/json_keys.h"
#include "cyfa/data/tokenizer.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/io/read_file.h"

static_assert(std::endian::native == std::endian::little, "tokens are stored little-endian and read as they lie");

namespace cyfa {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFormat = "cyfa tokens";
constexpr size_t kBlock = 1 << 20;

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string shard_name(size_t shard, const char* ending) {
  char text[48];
  std::snprintf(text, sizeof(text), "shard-%05zu.%s", shard, ending);
  return text;
}

std::string number(int64_t value) { return std::to_string(value); }

io::MappedFile open_sized(const std::filesystem::path& path, int64_t count, int64_t width, const char* what) {
  io::MappedFile file(path);
  const auto size = static_cast<int64_t>(file.bytes().size());
  if (size != count * width) {
    throw io::FileError(
        path, "holds " + number(size) + " bytes; the manifest says " + number(count) + " " + what + " of " + number(width) + " bytes");
  }
  return file;
}

uint64_t start_at(const io::MappedFile& file, int64_t index) {
  uint64_t start = 0;
  std::memcpy(&start, file.bytes().data() + index * 8, 8);
  return start;
}

// Copies tokens and returns the largest.
template <class Token>
int64_t copy_tokens(const std::byte* from, std::span<int64_t> to) {
  int64_t largest = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    Token token;
    std::memcpy(&token, from + i * sizeof(Token), sizeof(Token));
    to[i] = token;
    largest = std::max(largest, to[i]);
  }
  return largest;
}

}  // namespace

std::string tokens_file(size_t shard) { return shard_name(shard, "tokens"); }
std::string documents_file(size_t shard) { return shard_name(shard, "documents"); }
std::string blocks_file(size_t shard) { return shard_name(shard, "blocks"); }

int64_t TokenManifest::tokens() const {
  int64_t sum = 0;
  for (const ShardEntry& shard : shards) sum += shard.tokens;
  return sum;
}

int64_t TokenManifest::documents() const {
  int64_t sum = 0;
  for (const ShardEntry& shard : shards) sum += shard.documents;
  return sum;
}

int64_t TokenManifest::block_hashes(size_t shard) const { return shards[shard].tokens * token_bytes() / static_cast<int64_t>(kBlock); }

ordered_json TokenManifest::json() const {
  const auto mark = [](const std::optional<int64_t>& id) { return id ? ordered_json(*id) : ordered_json(nullptr); };
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardEntry& shard = shards[i];
    list.push_back({{"file", tokens_file(i)},
                    {"tokens", shard.tokens},
                    {"documents", shard.documents},
                    {"tokens_checksum", hex(shard.tokens_checksum)},
                    {"documents_checksum", hex(shard.documents_checksum)}});
    if (shard.blocks_checksum) list.back()["blocks_checksum"] = hex(*shard.blocks_checksum);
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"tokenizer", {{"name", tokenizer}, {"hash", hex(tokenizer_hash)}}},
          {"vocab_size", vocab_size},
          {"token_type", token_bytes() == 2 ? "u16" : "u32"},
          {"marks", {{"begin", mark(begin_mark)}, {"end", mark(end_mark)}}},
          {"tokens", tokens()},
          {"documents", documents()},
          {"input", {{"files", input_files}, {"bytes", input_bytes}}},
          {"losses", {{"damaged", losses.damaged}, {"empty", losses.empty}, {"repaired", losses.repaired}}},
          {"shards", list}};
}

std::string TokenManifest::text() const { return json().dump(1) + "\n"; }

TokenManifest TokenManifest::parse(const ordered_json& json, const std::filesystem::path& path) {
  const JsonKeys keys(json, path, "");
  keys.expect("format", kFormat);
  if (const int64_t version = keys.count("version"); version != kVersion) {
    throw io::FileError(path, "is of version " + number(version) + "; this program reads version " + number(kVersion));
  }
  TokenManifest manifest;
  const JsonKeys tokenizer = keys.object("tokenizer");
  manifest.tokenizer = tokenizer.string("name");
  if (manifest.tokenizer != "bytes" && manifest.tokenizer != "tokenizer.model") {
    throw io::FileError(path, "tokenizer.name is " + io::printable(manifest.tokenizer) + "; wanted bytes or tokenizer.model");
  }
  manifest.tokenizer_hash = tokenizer.hash("hash");
  manifest.vocab_size = keys.count("vocab_size", int64_t{1} << 31);
  keys.expect("token_type", manifest.token_bytes() == 2 ? "u16" : "u32");
  const JsonKeys marks = keys.object("marks");
  manifest.begin_mark = marks.optional_count("begin", manifest.vocab_size - 1);
  manifest.end_mark = marks.optional_count("end", manifest.vocab_size - 1);
  const JsonKeys input = keys.object("input");
  manifest.input_files = input.count("files");
  manifest.input_bytes = input.count("bytes");
  const JsonKeys losses = keys.object("losses");
  manifest.losses = {losses.count("damaged"), losses.count("empty"), losses.count("repaired")};

  const ordered_json& list = keys.at("shards");
  if (!list.is_array()) throw io::FileError(path, "shards is not a list");
  int64_t room = JsonKeys::kMost;
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonKeys entry(list[i], path, "shards[" + std::to_string(i) + "]");
    entry.expect("file", tokens_file(i));
    ShardEntry shard;
    shard.tokens = entry.count("tokens", room);
    room -= shard.tokens;
    shard.documents = entry.count("documents", shard.tokens);
    shard.tokens_checksum = entry.hash("tokens_checksum");
    shard.documents_checksum = entry.hash("documents_checksum");
    if (list[i].contains("blocks_checksum")) shard.blocks_checksum = entry.hash("blocks_checksum");
    manifest.shards.push_back(shard);
  }
  for (const auto& [key, sum] : {std::pair("tokens", manifest.tokens()), std::pair("documents", manifest.documents())}) {
    if (const int64_t said = keys.count(key); said != sum) {
      throw io::FileError(path, std::string(key) + " is " + number(said) + ", but the shards have " + number(sum));
    }
  }
  return manifest;
}

void Checksum::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t room = kBlock - block_.size();
    const size_t taken = std::min(room, bytes.size());
    if (block_.empty() && taken == kBlock) {
      add_block(bytes.first(taken));
    } else {
      block_.insert(block_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
      if (block_.size() == kBlock) {
        add_block(block_);
        block_.clear();
      }
    }
    bytes = bytes.subspan(taken);
  }
}

void Checksum::add_block(std::span<const std::byte> block) {
  hash_ = io::hash64(block, hash_);
  blocks_.push_back(hash_);
}

uint64_t Checksum::value() const { return io::hash64(block_, hash_); }

uint64_t checksum(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.value();
}

TokenData TokenData::open(const std::filesystem::path& folder) {
  TokenData data;
  data.folder_ = folder;
  const std::filesystem::path path = folder / "manifest.json";
  if (!std::filesystem::exists(path)) {
    throw io::FileError(folder, std::filesystem::exists(folder / "progress.json")
                                    ? "holds tokens of an unfinished `cyfa prepare`; run it again to finish them"
                                    : "holds no manifest.json; wanted a folder made by `cyfa prepare`");
  }
  const std::string text = io::read_file(path, kManifestLimits.bytes, kManifestLimits.what);
  data.manifest_ = TokenManifest::parse(io::parse_json(text, path, kManifestLimits), path);
  data.hash_ = io::hash64(text);
  data.begins_ = {0};
  for (size_t i = 0; i < data.manifest_.shards.size(); ++i) {
    const ShardEntry& entry = data.manifest_.shards[i];
    Shard shard;
    shard.tokens = open_sized(data.tokens_path(i), entry.tokens, data.manifest_.token_bytes(), "tokens");
    shard.documents = open_sized(folder / documents_file(i), entry.documents, 8, "document starts");
    data.shards_.push_back(std::move(shard));
    data.begins_.push_back(data.begins_.back() + entry.tokens);
  }
  data.documents_ = data.manifest_.documents();
  return data;
}

std::string TokenData::tokenizer_file() const { return tokenizer() == "bytes" ? tokenizer() : (folder_ / tokenizer()).string(); }

size_t TokenData::shard_of(int64_t position) const {
  return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), position) - begins_.begin()) - 1;
}

void TokenData::check_range(int64_t begin, int64_t end) const {
  if (begin < 0 || end < begin || end > tokens()) {
    throw std::out_of_range(folder_.string() + ": tokens " + number(begin) + " .. " + number(end) + " were asked for; there are " +
                            number(tokens()));
  }
}

void TokenData::read(int64_t begin, std::span<int64_t> to) const {
  check_range(begin, begin > tokens() ? begin : begin + static_cast<int64_t>(to.size()));  // the sum cannot overflow
  if (to.empty()) return;
  const int64_t width = manifest_.token_bytes();
  for (size_t shard = shard_of(begin); !to.empty(); ++shard) {
    const int64_t offset = begin - begins_[shard];
    const auto count = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(to.size()), begins_[shard + 1] - begin));
    const std::byte* from = shards_[shard].tokens.bytes().data() + offset * width;
    const std::span<int64_t> part = to.first(count);
    const int64_t largest = width == 2 ? copy_tokens<uint16_t>(from, part) : copy_tokens<uint32_t>(from, part);
    if (largest >= vocab_size()) {
      const int64_t place = offset + (std::find(part.begin(), part.end(), largest) - part.begin());
      throw io::FileError(tokens_path(shard),
                          "token " + number(place) + " is " + number(largest) + ", beyond the vocabulary of " + number(vocab_size()));
    }
    begin += static_cast<int64_t>(count);
    to = to.subspan(count);
  }
}

std::vector<int64_t> TokenData::document_starts(int64_t begin, int64_t end) const {
  check_range(begin, end);
  std::vector<int64_t> starts;
  for (size_t shard = shard_of(begin); shard < shards_.size() && begins_[shard] < end; ++shard) {
    const io::MappedFile& file = shards_[shard].documents;
    const auto from = static_cast<uint64_t>(std::max<int64_t>(begin - begins_[shard], 0));
    const int64_t stop = std::min(end, begins_[shard + 1]) - begins_[shard];
    int64_t low = 0, high = manifest_.shards[shard].documents;  // binary search: the first start >= `from` is in low .. high
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (start_at(file, middle) < from) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    uint64_t last = from;
    for (int64_t i = low; i < manifest_.shards[shard].documents; ++i) {
      const uint64_t start = start_at(file, i);
      if (start < last || start >= static_cast<uint64_t>(manifest_.shards[shard].tokens)) {
        throw io::FileError(folder_ / documents_file(shard),
                            "document " + number(i) + " starts at " + std::to_string(start) + ", out of order");
      }
      if (start >= static_cast<uint64_t>(stop)) break;
      starts.push_back(begins_[shard] + static_cast<int64_t>(start));
      last = start + 1;
    }
  }
  return starts;
}

void TokenData::check_starts(size_t shard) const {
  uint64_t least = 0;
  for (int64_t i = 0; i < manifest_.shards[shard].documents; ++i) {
    const uint64_t start = start_at(shards_[shard].documents, i);
    if (start < least || start >= static_cast<uint64_t>(manifest_.shards[shard].tokens)) {
      throw io::FileError(folder_ / documents_file(shard),
                          "document " + number(i) + " starts at " + std::to_string(start) + ", out of order");
    }
    least = start + 1;
  }
}

namespace {

[[noreturn]] void differs(const std::filesystem::path& path, const std::string& what) {
  throw io::FileError(path, what + ": the file has changed since `cyfa prepare` wrote it. Make the folder again from the text");
}

void compare(const std::filesystem::path& path, std::span<const std::byte> bytes, uint64_t wanted) {
  const uint64_t sum = checksum(bytes);
  if (sum != wanted) differs(path, "has the checksum " + hex(sum) + "; the manifest says " + hex(wanted));
}

}  // namespace

// The block hashes of a shard, compared with their checksum.
io::MappedFile TokenData::checked_blocks(size_t shard) const {
  const std::filesystem::path path = folder_ / blocks_file(shard);
  io::MappedFile file = open_sized(path, manifest_.block_hashes(shard), 8, "block hashes");
  compare(path, file.bytes(), *manifest_.shards[shard].blocks_checksum);
  return file;
}

void TokenData::check_whole() const {
  for (size_t i = 0; i < shards_.size(); ++i) {
    compare(tokens_path(i), shards_[i].tokens.bytes(), manifest_.shards[i].tokens_checksum);
    compare(folder_ / documents_file(i), shards_[i].documents.bytes(), manifest_.shards[i].documents_checksum);
    if (manifest_.shards[i].blocks_checksum) checked_blocks(i);
  }
}

// Compares `blocks` blocks of a shard, evenly spread from its first to its last, which may be shorter. Returns the bytes read.
int64_t TokenData::check_sample(size_t shard, int64_t blocks) const {
  const io::MappedFile hashes = checked_blocks(shard);
  const std::span<const std::byte> bytes = shards_[shard].tokens.bytes();
  const int64_t whole = manifest_.block_hashes(shard), last = whole;  // block `last` is the rest, judged by the checksum of the file
  blocks = std::min(std::max<int64_t>(blocks, 2), last + 1);
  int64_t read = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block = blocks == 1 ? last : i * last / (blocks - 1);
    const auto begin = static_cast<size_t>(block) * kBlock;
    const std::span<const std::byte> part = bytes.subspan(begin, std::min(kBlock, bytes.size() - begin));
    const uint64_t seed = block == 0 ? 0 : start_at(hashes, block - 1);
    const uint64_t wanted = block == last ? manifest_.shards[shard].tokens_checksum : start_at(hashes, block);
    if (io::hash64(part, seed) != wanted) {
      differs(tokens_path(shard), "bytes " + std::to_string(begin) + " to " + std::to_string(begin + part.size()) + " have another hash");
    }
    read += static_cast<int64_t>(part.size());
  }
  return read;
}

DataChecked TokenData::check(const DataCheck& how) const {
  DataChecked result;
  bool hashed = true;
  for (size_t i = 0; i < shards_.size(); ++i) {
    result.all += static_cast<int64_t>(shards_[i].tokens.bytes().size());
    hashed = hashed && manifest_.shards[i].blocks_checksum.has_value();
  }
  if (result.all <= how.whole_bytes) {
    check_whole();
    result.bytes = result.all;
  } else if (hashed) {
    result.extent = DataChecked::Extent::kSampled;
    const int64_t blocks = how.sample_bytes / static_cast<int64_t>(kBlock * shards_.size());
    for (size_t i = 0; i < shards_.size(); ++i) result.bytes += check_sample(i, blocks);
  } else {
    result.extent = DataChecked::Extent::kNothing;
  }
  return result;
}

void TokenData::verify() const {
  if (const uint64_t hash = load_tokenizer(tokenizer_file())->hash(); hash != tokenizer_hash()) {
    throw io::FileError(tokenizer_file(), "has the hash " + hex(hash) + "; the manifest says " + hex(tokenizer_hash()));
  }
  check_whole();
  std::vector<int64_t> some(1 << 16);
  for (size_t i = 0; i < shards_.size(); ++i) {
    check_starts(i);
    for (int64_t at = begins_[i]; at < begins_[i + 1];) {
      const auto count = std::min(static_cast<int64_t>(some.size()), begins_[i + 1] - at);
      read(at, std::span(some).first(static_cast<size_t>(count)));
      at += count;
    }
  }
}

}  // namespace cyfa
