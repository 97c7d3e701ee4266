// Tokenizes text files into a folder for TokenData: one thread reads, several tokenize, and the calling thread writes in input order. The
// output depends only on the inputs and options, not on the number of threads or on interruptions. Used by `cyfa prepare`.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cyfa/data/text_source.h"
#include "cyfa/data/token_data.h"

namespace cyfa {

// What to tokenize and how.
struct PrepareOptions {
  std::filesystem::path folder;             // of the output: new, empty, or of an interrupted run
  std::vector<std::string> inputs;          // text files, and folders of them
  std::string tokenizer = "bytes";          // "bytes", or the path of a SentencePiece model
  int64_t shard_tokens = int64_t{1} << 27;  // a shard ends with the first document, or part of a long document, that reaches this
  int threads = 0;                          // tokenizing threads; 0: one per core
  bool begin = true, end = false;           // put a BOS token before and an EOS token after every document
  std::optional<int64_t> bos, eos;          // ids of these tokens; absent: the tokenizer's own
  bool stop_at_damage = false;              // throw at the first damaged input instead of skipping it
  std::string text_field = "text";          // key of the text in .jsonl files
};

// The state of a running Prepare.
struct PrepareProgress {
  int64_t input_done = 0, input_all = 0;  // bytes of the input files
  int64_t text_bytes = 0;                 // bytes of text tokenized by this run
  int64_t tokens = 0, documents = 0;      // in the whole folder
  double seconds = 0;
  double seconds_left = 0;  // estimated from the input bytes; negative: not known yet
};

// A finished folder.
struct PrepareResult {
  TokenManifest manifest;
  uint64_t hash = 0;           // of the manifest
  PassedOver passed_over;      // in the named folders
  int64_t resumed_shards = 0;  // shards found complete from an interrupted run
  int64_t text_bytes = 0;      // bytes of text tokenized by this run
  double seconds = 0;
};

// One run.
class Prepare {
 public:
  explicit Prepare(PrepareOptions options) : options_(std::move(options)) {}

  // Creates the folder, or completes one whose run was interrupted. The options and inputs must then be the same, except for threads and
  // stop_at_damage. Throws io::FileError and std::invalid_argument.
  PrepareResult run();

  std::function<void(const PrepareProgress&)> on_progress;  // called a few times per second
  std::function<void(const std::string&)> on_damage;        // called with "file: line 12, byte 345: ..." for each damaged input

 private:
  PrepareOptions options_;
};

}  // namespace cyfa
