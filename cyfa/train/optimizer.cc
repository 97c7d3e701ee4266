#include "cyfa/train/optimizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>

#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"

namespace cyfa {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhole = "optimizer.safetensors";
constexpr const char* kBegin = "optimizer-";  // of a rank's file: optimizer-00001-of-00004.safetensors
constexpr int kMostRanks = 1 << 16;

std::vector<ParameterRange> whole_parameters(const CausalLM& model) {
  std::vector<ParameterRange> all;
  for (ParameterId id = 0; id < model.parameters().size(); ++id) all.push_back({id, 0, model.parameters()[id].numel()});
  return all;
}

std::string part_name(int rank, int ranks) {
  std::array<char, 64> name = {};
  std::snprintf(name.data(), name.size(), "%s%05d-of-%05d.safetensors", kBegin, rank + 1, ranks);
  return name.data();
}

// The files of an optimizer state: the whole, or the part of each rank, all of which must be there; none if there is none.
std::vector<fs::path> state_files(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kWhole, error)) return {folder / kWhole};
  if (!fs::exists(folder, error)) return {};
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const size_t of = file.find("-of-");
    if (!file.starts_with(kBegin) || of == std::string::npos) continue;
    int ranks = 0;
    std::from_chars(file.data() + of + 4, file.data() + file.size(), ranks);
    if (ranks < 1 || ranks > kMostRanks || part_name(0, ranks).substr(part_name(0, ranks).find("-of-")) != file.substr(of)) continue;
    std::vector<fs::path> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      parts.push_back(folder / part_name(rank, ranks));
      if (!fs::exists(parts.back(), error)) {
        throw io::FileError(parts.back(), "is missing, a part of the optimizer's state of " + std::to_string(ranks) + " ranks");
      }
    }
    return parts;
  }
  return {};
}

// A stored range of a parameter's moments.
struct StoredRange {
  int64_t begin, end;
  const TensorFile* file;
  std::string suffix;  // of the tensors' names behind that of the parameter: "" or "[16:32]"
};

std::string range_text(int64_t begin, int64_t end) {
  std::string text = "[";
  return text.append(std::to_string(begin)).append(":").append(std::to_string(end)).append("]");
}

// The ranges of each parameter's moments in the files.
std::map<std::string, std::vector<StoredRange>> stored_ranges(const std::vector<TensorFile>& files) {
  constexpr std::string_view kFirst = "first.";
  std::map<std::string, std::vector<StoredRange>> stored;
  for (const TensorFile& file : files) {
    for (const std::string& full : file.file().names()) {
      if (!full.starts_with(kFirst)) continue;
      const std::string name = full.substr(kFirst.size());
      const int64_t length = file.file().at(full).numel();
      const size_t bracket = name.rfind('[');
      if (bracket == std::string::npos || !name.ends_with(']')) {
        stored[name].push_back({0, length, &file, ""});
        continue;
      }
      int64_t begin = 0;
      std::from_chars(name.data() + bracket + 1, name.data() + name.size(), begin);
      if (begin < 0 || begin > kMostParameters || name.substr(bracket) != range_text(begin, begin + length)) {
        throw io::FileError(file.file().path(), "tensor " + io::printable(full) + " does not have the length its name says");
      }
      stored[name.substr(0, bracket)].push_back({begin, begin + length, &file, name.substr(bracket)});
    }
  }
  return stored;
}

}  // namespace

double learning_rate(const Recipe& r, int64_t step) {
  if (step < r.warmup) return r.rate * static_cast<double>(step + 1) / static_cast<double>(r.warmup);
  if (r.schedule == "constant") return r.rate;
  const auto length = static_cast<double>(std::max<int64_t>(1, r.steps - r.warmup));
  const double done = std::min(1.0, static_cast<double>(step - r.warmup) / length);
  return r.rate * (r.final_rate + (1 - r.final_rate) * 0.5 * (1 + std::cos(std::numbers::pi * done)));
}

Optimizer::Optimizer(CausalLM& model, const Recipe& r) : Optimizer(model, r, whole_parameters(model), model.parameters()) {}

Optimizer::Optimizer(CausalLM& model, const Recipe& r, const std::vector<ParameterRange>& ranges, const std::vector<at::Tensor>& exact)
    : model_(model), beta1_(r.beta1), beta2_(r.beta2), eps_(r.eps), weight_decay_(r.weight_decay) {
  const at::NoGradGuard no_grad;
  for (const ParameterRange& range : ranges) {
    Slot slot = {range, range.length == model.parameters()[range.id].numel(), {}, {}, {}};
    const at::Tensor& values = exact.at(range.id);
    if (values.scalar_type() != model.parameters()[range.id].scalar_type()) slot.master = range_of(slot, values).clone();
    slot.first = at::zeros_like(value(slot), at::MemoryFormat::Contiguous);
    slot.second = at::zeros_like(slot.first);
    slots_.push_back(std::move(slot));
  }
}

at::Tensor Optimizer::range_of(const Slot& slot, const at::Tensor& parameter) const {
  const at::Tensor p = parameter.detach();
  return slot.whole ? p : p.view({-1}).narrow(0, slot.range.begin, slot.range.length);
}

at::Tensor Optimizer::value(const Slot& slot) const {
  return slot.master.defined() ? slot.master : range_of(slot, model_.parameters()[slot.range.id]);
}

std::vector<at::Tensor> Optimizer::values() const {
  std::vector<at::Tensor> all;
  for (const Slot& slot : slots_) all.push_back(value(slot));
  return all;
}

std::string Optimizer::name(const Slot& slot) const {
  const std::string& name = model_.table().specs()[slot.range.id].name;
  return slot.whole ? name : name + range_text(slot.range.begin, slot.range.begin + slot.range.length);
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> all;
  for (const at::Tensor& p : model_.parameters()) all.push_back(p.grad());
  return all;
}

at::Tensor Optimizer::gradient_norm(const std::vector<at::Tensor>& gradients) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (const at::Tensor& g : gradients) {
    if (g.defined()) grads.push_back(g);
  }
  if (grads.empty()) return at::zeros({}, at::TensorOptions(model_.device()).dtype(at::kDouble));
  return at::stack(at::_foreach_norm(grads, 2)).to(at::kDouble).norm();
}

void Optimizer::step(const std::vector<at::Tensor>& gradients, double rate, double clip, const at::Tensor& norm, const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  ++steps_;
  const at::TensorOptions options = model_.parameters().at(0).options().dtype(at::kFloat).requires_grad(false);
  const at::Tensor factor = clip > 0 ? at::div(at::full_like(norm, clip), norm + 1e-6).clamp_max_(1.0) : at::ones_like(norm);
  const at::Tensor scale = at::reciprocal(factor).to(at::kFloat), count = at::full({}, static_cast<double>(steps_), options);
  const at::Tensor refused = at::logical_not(at::isfinite(norm + loss)).to(at::kFloat);
  for (const bool decays : {true, false}) {
    std::vector<at::Tensor> parameters, grads, first, second;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (model_.table().specs()[slot.range.id].weight_decay != decays || !gradients.at(i).defined()) continue;
      parameters.push_back(value(slot));
      grads.push_back(gradients[i].view(parameters.back().sizes()));  // on a GPU the fused update wants equal shapes
      first.push_back(slot.first);
      second.push_back(slot.second);
    }
    if (parameters.empty()) continue;
    const std::vector<at::Tensor> counts(parameters.size(), count);
    at::_fused_adamw_(parameters, grads, first, second, {}, counts, rate, beta1_, beta2_, decays ? weight_decay_ : 0.0, eps_, false, false,
                      scale, refused);
  }
  std::vector<at::Tensor> rounded, masters;
  for (const Slot& slot : slots_) {
    if (!slot.master.defined()) continue;
    rounded.push_back(range_of(slot, model_.parameters()[slot.range.id]));
    masters.push_back(slot.master);
  }
  if (!masters.empty()) at::_foreach_copy_(rounded, masters);
  for (at::Tensor& p : model_.parameters()) p.mutable_grad().reset();
}

OptimizerFile Optimizer::state(int rank, int ranks) const {
  OptimizerFile file = {ranks == 1 ? kWhole : part_name(rank, ranks), {{"steps", at::tensor({steps_}, at::kLong)}}, {}};
  const auto add = [&](const std::string& name, const at::Tensor& first, const at::Tensor& second) {
    file.tensors.emplace_back("first." + name, first);
    file.tensors.emplace_back("second." + name, second);
  };
  int64_t all = 0;
  for (const Slot& slot : slots_) all += slot.range.length;
  const bool sharded = all < model_.table().numel();
  // This rank's equal part of the moments, one behind the other, if it keeps those of all parameters.
  const int64_t begin = sharded ? 0 : all / ranks * rank, end = sharded || rank + 1 == ranks ? all : begin + all / ranks;
  int64_t at = 0;  // of the slot's first element
  for (const Slot& slot : slots_) {
    const int64_t from = std::max(begin - at, int64_t{0}), to = std::min(end - at, slot.range.length);
    at += slot.range.length;
    if (from == 0 && to == slot.range.length) {
      add(name(slot), slot.first, slot.second);
    } else if (from < to) {
      const auto part = [&](const at::Tensor& x) { return x.view({-1}).narrow(0, from, to - from); };
      add(model_.table().specs()[slot.range.id].name + range_text(slot.range.begin + from, slot.range.begin + to), part(slot.first),
          part(slot.second));
    }
  }
  if (ranks > 1) {
    file.metadata = {
        {"rank", std::to_string(rank)}, {"ranks", std::to_string(ranks)}, {"table", std::to_string(table_hash(model_.table()))}};
  }
  return file;
}

void Optimizer::save(const fs::path& folder, int rank, int ranks) const {
  const OptimizerFile file = state(rank, ranks);
  write_tensor_file(folder / file.name, file.tensors, file.metadata);
}

void Optimizer::load(const fs::path& folder) {
  std::vector<TensorFile> files;
  for (const fs::path& path : state_files(folder)) files.emplace_back(path);
  if (files.empty()) throw io::FileError(folder / kWhole, "is missing: the checkpoint has no optimizer state");
  std::optional<int64_t> steps;
  for (const TensorFile& file : files) {
    const auto& metadata = file.file().metadata();
    const auto table = metadata.find("table");
    if (table != metadata.end() && table->second != std::to_string(table_hash(model_.table()))) {
      throw io::FileError(file.file().path(), "belongs to another model: the hash of its parameter table is " +
                                                  io::printable(table->second) + ", wanted " + std::to_string(table_hash(model_.table())));
    }
    const at::Tensor count = file.mapped("steps");
    if (count.numel() != 1 || count.scalar_type() != at::kLong) throw io::FileError(file.file().path(), "tensor steps is not one integer");
    if (steps && *steps != count.item<int64_t>()) throw io::FileError(file.file().path(), "is of another step than the other parts");
    steps = count.item<int64_t>();
  }
  const std::map<std::string, std::vector<StoredRange>> stored = stored_ranges(files);
  for (const Slot& slot : slots_) {
    const std::string& name = model_.table().specs()[slot.range.id].name;
    const int64_t begin = slot.range.begin, end = begin + slot.range.length;
    const auto misfit = [&] { return io::FileError(files[0].file().path(), "tensor " + io::printable(name) + " does not fit the model"); };
    const auto found = stored.find(name);
    if (found == stored.end()) throw misfit();
    int64_t filled = 0;
    for (const StoredRange& part : found->second) {
      const int64_t from = std::max(begin, part.begin), to = std::min(end, part.end);
      if (from >= to) continue;
      filled += to - from;
      for (const auto& [kind, moment] : {std::pair("first.", slot.first), std::pair("second.", slot.second)}) {
        const at::Tensor stored_part = part.file->mapped(kind + name + part.suffix);
        const bool fits = stored_part.scalar_type() == moment.scalar_type() && stored_part.numel() == part.end - part.begin &&
                          (!part.suffix.empty() || stored_part.sizes() == model_.parameters()[slot.range.id].sizes());
        if (!fits) throw misfit();
        moment.view({-1}).narrow(0, from - begin, to - from).copy_(stored_part.reshape({-1}).narrow(0, from - part.begin, to - from));
      }
    }
    if (filled != slot.range.length) throw misfit();
  }
  steps_ = *steps;
}

bool has_optimizer_state(const fs::path& checkpoint) { return !state_files(checkpoint).empty(); }

uint64_t table_hash(const ParameterTable& table) {
  uint64_t hash = 0;
  for (const ParameterSpec& spec : table.specs()) {
    hash = io::hash64(spec.name, hash);
    hash = io::hash64(std::as_bytes(std::span(spec.shape)), hash);
  }
  return hash;
}

}  // namespace cyfa
