// See batches.h. The order of batches depends on the hashes here: changing them changes every training run.
#include "cyfa/data/batches.h"

#include <array>
#include <stdexcept>
#include <string>

#include "cyfa/io/hash.h"

namespace cyfa {
namespace {

uint64_t hash_of(std::array<uint64_t, 3> numbers) { return io::hash64(std::as_bytes(std::span(numbers))); }

// The finaliser of splitmix64: every bit of the result depends on every bit of x.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

uint64_t epoch_seed(uint64_t seed, int64_t epoch) { return hash_of({0x45504F43, seed, static_cast<uint64_t>(epoch)}); }

void want(bool good, const std::string& message) {
  if (!good) throw std::invalid_argument("batches: " + message);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed) : size_(static_cast<uint64_t>(size)), half_(1) {
  want(size > 0, "a permutation of " + std::to_string(size) + " numbers; wanted at least one");
  while (half_ < 31 && (uint64_t{1} << (2 * half_)) < size_) ++half_;
  for (uint64_t round = 0; round < kRounds; ++round) keys_[round] = hash_of({0x5045524D, seed, round});
}

uint64_t Permutation::once(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_) - 1;
  uint64_t left = value >> half_, right = value & mask;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mixed(right + key) & mask);
    left = right;
    right = next;
  }
  return (left << half_) | right;
}

uint64_t Permutation::once_back(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_) - 1;
  uint64_t left = value >> half_, right = value & mask;
  for (int round = kRounds - 1; round >= 0; --round) {
    const uint64_t before = right ^ (mixed(left + keys_[round]) & mask);
    right = left;
    left = before;
  }
  return (left << half_) | right;
}

int64_t Permutation::operator()(int64_t index) const {
  auto value = static_cast<uint64_t>(index);
  do {
    value = once(value);
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

int64_t Permutation::inverse(int64_t value) const {
  auto index = static_cast<uint64_t>(value);
  do {
    index = once_back(index);
  } while (index >= size_);
  return static_cast<int64_t>(index);
}

Batches::Batches(const TokenData& data, const BatchOptions& options) : data_(&data), options_(options) {
  const auto [T, B] = std::pair(options.T, options.B);
  want(T >= 1 && T <= int64_t{1} << 32, "T is " + std::to_string(T) + "; wanted 1 to 2^32");
  want(B >= 1 && B <= int64_t{1} << 24, "B is " + std::to_string(B) + "; wanted 1 to 2^24");
  want(options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks,
       "rank " + std::to_string(options.rank) + " of " + std::to_string(options.ranks) +
           "; wanted ranks from 1 on, and a rank from 0 to ranks - 1");
  const std::string source = data.folder().string();
  want(data.tokens() > T, "T is " + std::to_string(T) + " and needs " + std::to_string(T + 1) + " tokens, but " + source + " has " +
                              std::to_string(data.tokens()) + "; take a smaller T or more data");
  windows_ = (data.tokens() - 1) / T;
  const int64_t rows = batch_windows();
  per_epoch_ = windows_ / rows;
  want(per_epoch_ >= 1, "a batch needs " + std::to_string(rows) + " windows of T = " + std::to_string(T) + ", but " + source + " has " +
                            std::to_string(windows_) + "; take a smaller B or T, or more data");
  for (const ReadText& read : options.before) {
    if (!options.shuffle || read.data != data.hash() || read.windows == 0) continue;
    want(read.T >= 1 && read.epoch >= 0 && read.windows > 0 && data.tokens() > read.T, "what earlier training has read is damaged");
    const int64_t windows = (data.tokens() - 1) / read.T;
    earlier_.push_back({read, windows, Permutation(windows, epoch_seed(read.seed, read.epoch))});
  }
}

Permutation Batches::permutation(int64_t epoch) const { return {windows_, epoch_seed(options_.seed, epoch)}; }

// Whether a window has tokens that earlier training has read.
bool Batches::read_before(int64_t window) const {
  const int64_t begin = window * options_.T, end = begin + options_.T;
  for (const Earlier& e : earlier_) {
    for (int64_t other = begin / e.read.T; other < e.windows && other * e.read.T < end; ++other) {
      if (e.order.inverse(other) < e.read.windows) return true;
    }
  }
  return false;
}

Batches::Place Batches::place(int64_t step) const {
  want(step >= 0, "step " + std::to_string(step) + "; wanted 0 or more");
  if (earlier_.empty()) return {step / per_epoch_, step % per_epoch_};
  const std::lock_guard lock(mutex_);
  const Permutation order = permutation(0);
  const auto batches = [&] { return static_cast<int64_t>(unread_.size()) / batch_windows(); };
  for (; searched_ < windows_ && batches() <= step; ++searched_) {
    if (!read_before(order(searched_))) unread_.push_back(searched_);
  }
  if (step < batches()) return {0, step};
  return {1 + (step - batches()) / per_epoch_, (step - batches()) % per_epoch_};
}

std::vector<int64_t> Batches::rows(int64_t step) const {
  const Place at = place(step);
  const int64_t first = (at.batch * options_.ranks + options_.rank) * options_.B;
  std::vector<int64_t> result(static_cast<size_t>(options_.B));
  for (int64_t i = 0; i < options_.B; ++i) result[static_cast<size_t>(i)] = first + i;
  if (at.epoch == 0 && !earlier_.empty()) {
    const std::lock_guard lock(mutex_);
    for (int64_t& row : result) row = unread_[static_cast<size_t>(row)];
  }
  if (options_.shuffle) {
    const Permutation order = permutation(at.epoch);
    for (int64_t& row : result) row = order(row);
  }
  return result;
}

std::vector<ReadText> Batches::read_after(int64_t steps) const {
  const Place at = place(steps);
  std::vector<ReadText> all;
  for (const ReadText& read : options_.before) {  // a finished epoch has read everything else
    if (at.epoch == 0 || read.data != data_->hash()) all.push_back(read);
  }
  int64_t windows = at.batch * batch_windows();
  if (at.epoch == 0 && windows > 0 && !earlier_.empty()) {
    const std::lock_guard lock(mutex_);
    windows = unread_[static_cast<size_t>(windows - 1)] + 1;
  }
  if (at.epoch > 0 || windows > 0) all.push_back({data_->hash(), options_.seed, options_.T, at.epoch, windows});
  return all;
}

Batch Batches::at(int64_t step) const {
  const auto [T, B] = std::pair(options_.T, options_.B);
  const std::vector<int64_t> windows = rows(step);
  Batch batch;
  batch.ids = at::empty({B, T + 1}, at::kLong);
  auto* ids = batch.ids.mutable_data_ptr<int64_t>();
  std::vector<int64_t> borders;
  for (int64_t row = 0; row < B; ++row) {
    const int64_t begin = windows[static_cast<size_t>(row)] * T;
    data_->read(begin, {ids + row * (T + 1), static_cast<size_t>(T + 1)});
    if (!options_.reset_documents) continue;
    borders.push_back(row * T);
    for (const int64_t start : data_->document_starts(begin + 1, begin + T)) borders.push_back(row * T + start - begin);
  }
  if (options_.reset_documents) {
    borders.push_back(B * T);
    batch.cu_seqlens = at::tensor(borders, at::kLong);
  }
  return batch;
}

}  // namespace cyfa
