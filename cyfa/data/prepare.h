// From files of text to a folder of tokens: one thread reads, some tokenize, one writes in the order of the input. What is written depends
// on the inputs and options alone, not on the threads nor on how often the run was interrupted.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cyfa/data/token_data.h"

namespace cyfa {

struct PrepareOptions {
  std::filesystem::path folder;
  std::vector<std::string> inputs;  // files and folders
  std::string tokenizer = "bytes";
  int64_t shard_tokens = int64_t{1} << 27;  // a shard ends with the first document, or part of a long one, that reaches this
  int threads = 0;                          // that tokenize; 0: one per core
  bool begin = true, end = false;           // a mark around every document
  std::optional<int64_t> bos, eos;          // the marks; absent: the tokenizer's own
  bool stop_at_damage = false;
  std::string text_field = "text";
};

struct PrepareProgress {
  int64_t input_done = 0, input_all = 0;  // bytes of the input files
  int64_t text_bytes = 0;                 // of documents, in this run
  int64_t tokens = 0, documents = 0;      // in all
  double seconds = 0;
  double seconds_left = 0;  // by input bytes; negative: not known yet
};

struct PrepareResult {
  TokenManifest manifest;
  uint64_t hash = 0;
  int64_t resumed_shards = 0;  // found whole
  int64_t text_bytes = 0;
  double seconds = 0;
};

class Prepare {
 public:
  explicit Prepare(PrepareOptions options) : options_(std::move(options)) {}

  // Makes the folder, or finishes one whose run was interrupted: options and inputs have to be the same then, threads and stop_at_damage
  // may differ. Throws io::FileError and std::invalid_argument.
  PrepareResult run();

  std::function<void(const PrepareProgress&)> on_progress;  // a few times a second
  std::function<void(const std::string&)> on_damage;        // "file: line 12, byte 345: ..."

 private:
  PrepareOptions options_;
};

}  // namespace cyfa
