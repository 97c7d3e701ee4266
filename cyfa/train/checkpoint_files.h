// What one rank writes of a checkpoint: some files of weights, its part of the optimizer's state, and on the first rank everything else.
// Used by RunFolder, which names the folder and says when the files of all ranks count.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <thread>

#include "cyfa/model/checkpoint.h"
#include "cyfa/train/optimizer.h"

namespace cyfa {

class CheckpointFiles {
 public:
  std::filesystem::path folder;
  std::vector<WeightFile> weights;
  OptimizerFile optimizer;
  std::vector<std::pair<std::string, std::vector<std::byte>>> others;  // by name; written last, in this order
  std::function<void()> draw;                                          // a picture beside the checkpoint; may be empty

  // Copies all tensors to memory of their own on the host, so that training may change them.
  void copy_to_host();
  // Writes everything. Throws nothing: error() and not_drawn() say what went wrong.
  void write();

  bool written() const { return written_; }
  // After write() has ended:
  std::exception_ptr error() const { return error_; }
  const std::string& not_drawn() const { return not_drawn_; }  // why there is no picture; empty if there is one

 private:
  std::string not_drawn_;
  std::exception_ptr error_;
  std::atomic<bool> written_ = false;
};

// The largest file of weights of a checkpoint by so many ranks: such that all write about as much, but at least `least` bytes.
int64_t weight_file_bytes(const CausalLM& model, int ranks, int64_t least);

}  // namespace cyfa
