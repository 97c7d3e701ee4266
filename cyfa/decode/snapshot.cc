#include "cyfa/decode/snapshot.h"

#include <array>

#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/model/tensor_file.h"
#include "cyfa/ops/common/check.h"

namespace cyfa {
namespace {

constexpr const char* kVersion = "1";

std::string hex(uint64_t value) {
  std::array<char, 24> text = {};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

uint64_t checksum(const NamedTensors& tensors) {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor x = tensor.to(at::kCPU).contiguous();
    sum = io::hash64({static_cast<const std::byte*>(x.const_data_ptr()), x.nbytes()}, io::hash64(name, sum));
  }
  return sum;
}

std::string tensor_name(size_t layer, size_t part) { return "layer." + std::to_string(layer) + "." + std::to_string(part); }

}  // namespace

void save_snapshot(const std::filesystem::path& path, const Snapshot& snapshot, const CausalLM& model) {
  NamedTensors tensors;
  for (size_t layer = 0; layer < snapshot.state.layers.size(); ++layer) {
    for (size_t part = 0; part < snapshot.state.layers[layer].size(); ++part) {
      tensors.emplace_back(tensor_name(layer, part), snapshot.state.layers[layer][part]);
    }
  }
  tensors.emplace_back("ids", at::tensor(snapshot.ids, at::kLong));
  if (snapshot.logits.defined()) tensors.emplace_back("logits", snapshot.logits.to(at::kFloat));
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  write_tensor_file(path, tensors, {{"cyfa_state", kVersion}, {"model", hex(fingerprint(model))}, {"checksum", hex(checksum(tensors))}});
}

Snapshot load_snapshot(const std::filesystem::path& path, const CausalLM& model) {
  const TensorFile file(path);
  const auto& metadata = file.file().metadata();
  const auto meta = [&](const char* key) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) throw io::FileError(path, std::string("is not a saved state: its metadata has no ") + key);
    return found->second;
  };
  if (meta("cyfa_state") != kVersion)
    throw io::FileError(path,
                        "is a saved state of version " + io::printable(meta("cyfa_state")) + "; this program reads version " + kVersion);
  if (meta("model") != hex(fingerprint(model))) {
    throw io::FileError(path, "belongs to another model (" + io::printable(meta("model")) + "; this one is " + hex(fingerprint(model)) +
                                  "): weights, config and type must be the same");
  }
  NamedTensors all;
  for (const std::string& name : file.file().names()) all.emplace_back(name, file.mapped(name));
  if (meta("checksum") != hex(checksum(all))) throw io::FileError(path, "is damaged: its checksum does not match");

  Snapshot out;
  out.state = model.initial_state(1);
  for (size_t layer = 0; layer < out.state.layers.size(); ++layer) {
    for (size_t part = 0; part < out.state.layers[layer].size(); ++part) {
      at::Tensor& to = out.state.layers[layer][part];
      to = file.copy(tensor_name(layer, part), std::nullopt, to.device());
    }
  }
  try {
    model.check_state(out.state);
    if (out.state.sequences() != 1)
      throw ops::ArgumentError("it holds " + std::to_string(out.state.sequences()) + " sequences, wanted one");
  } catch (const ops::ArgumentError& e) {
    throw io::FileError(path, std::string("does not fit the model: ") + e.what());
  }
  out.ids = file.file().read<int64_t>("ids");
  for (const int64_t id : out.ids) {
    if (id < 0 || id >= model.config().vocab_size)
      throw io::FileError(path, "holds token " + std::to_string(id) + ", which the model does not have");
  }
  if (!out.ids.empty()) {
    out.logits = file.copy("logits");
    if (out.logits.dim() != 1 || out.logits.size(0) != model.config().vocab_size || out.logits.scalar_type() != at::kFloat) {
      throw io::FileError(path, "tensor logits does not fit the model");
    }
  }
  return out;
}

}  // namespace cyfa
