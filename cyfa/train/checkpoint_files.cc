#include "cyfa/train/checkpoint_files.h"

#include <algorithm>

#include "cyfa/io/atomic_file.h"

namespace cyfa {
namespace {

void copy_to_host(NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  for (auto& [name, x] : tensors) {
    const at::Tensor own = at::empty(x.sizes(), x.options().device(at::kCPU).requires_grad(false));
    x = own.copy_(x);
  }
}

}  // namespace

void CheckpointFiles::copy_to_host() {
  for (WeightFile& file : weights) cyfa::copy_to_host(file.tensors);
  cyfa::copy_to_host(optimizer.tensors);
}

void CheckpointFiles::write() {
  try {
    for (const WeightFile& file : weights) write_weights(folder, file);
    write_tensor_file(folder / optimizer.name, optimizer.tensors, optimizer.metadata);
    for (const auto& [name, bytes] : others) {
      io::AtomicFile file(folder / name);
      file.write(bytes);
      file.commit();
    }
  } catch (...) {
    error_ = std::current_exception();
  }
  try {
    if (draw) draw();
  } catch (const std::exception& e) {  // a picture that fails, for want of a font perhaps, ends no run
    not_drawn_ = e.what();
  }
  written_ = true;
}

int64_t weight_file_bytes(const CausalLM& model, int ranks, int64_t least) {
  if (ranks == 1) return kShardBytes;
  int64_t all = 0;
  for (const at::Tensor& p : model.parameters()) all += static_cast<int64_t>(p.nbytes());
  return std::clamp((all + ranks - 1) / ranks, least, kShardBytes);
}

}  // namespace cyfa
