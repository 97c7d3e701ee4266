#include "cyfa/model/checkpoint.h"

#include <ATen/Parallel.h>

#include <array>

#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/io/json.h"
#include "cyfa/io/new_folder.h"
#include "cyfa/model/tensor_file.h"

namespace cyfa {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "model.safetensors";
constexpr io::JsonLimits kIndexLimits = {.what = "an index of shards", .bytes = 32 << 20, .values = 1 << 19, .depth = 8};
constexpr size_t kMostShards = 4096;
constexpr size_t kNamed = 5;  // an error lists this many names, then only a count

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < kNamed; ++i) out += (i == 0 ? "" : ", ") + io::printable(names[i]);
  if (names.size() > kNamed) out += " and " + std::to_string(names.size() - kNamed) + " more";
  return out;
}

// The file that holds each tensor.
struct Source {
  std::vector<TensorFile> files;
  std::map<std::string, size_t> file_of;

  explicit Source(const fs::path& folder) {
    if (fs::exists(folder / kWeights)) {
      files.emplace_back(folder / kWeights);
      for (const std::string& name : files[0].file().names()) file_of[name] = 0;
    } else if (fs::exists(folder / kWeightIndex)) {
      read_index(folder);
    } else {
      throw io::FileError(folder, std::string("holds neither ") + kWeights + " nor " + kWeightIndex);
    }
  }

 private:
  void read_index(const fs::path& folder) {
    const fs::path path = folder / kWeightIndex;
    const Json index = io::read_json(path, kIndexLimits);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
      throw io::FileError(path, "is not an object with a weight_map");
    }
    std::map<std::string, size_t> opened;
    for (const auto& [name, shard] : index["weight_map"].items()) {
      if (!shard.is_string()) throw io::FileError(path, "weight_map of " + io::printable(name) + " is no file name");
      const auto shard_name = shard.get<std::string>();
      if (shard_name.empty() || shard_name != fs::path(shard_name).filename() || shard_name == "." || shard_name == "..") {
        throw io::FileError(path, "weight_map of " + io::printable(name) + " is " + io::printable(shard_name) +
                                      "; wanted the name of a file in this folder");
      }
      const auto [at, fresh] = opened.try_emplace(shard_name, files.size());
      if (fresh && files.size() == kMostShards) throw io::FileError(path, "names more than " + std::to_string(kMostShards) + " files");
      if (fresh) files.emplace_back(folder / shard_name);
      if (!files[at->second].contains(name)) {
        throw io::FileError(
            path, "weight_map says that " + io::printable(name) + " is in " + io::printable(shard_name) + ", which does not hold it");
      }
      file_of[name] = at->second;
    }
  }
};

void check(const fs::path& folder, const Source& source, const CausalLM& model) {
  std::vector<std::string> missing, unexpected, wrong;
  std::map<std::string, bool> wanted;
  for (const ParameterSpec& spec : model.table().specs()) {
    wanted[spec.name] = true;
    const auto found = source.file_of.find(spec.name);
    if (found == source.file_of.end()) {
      missing.push_back(spec.name);
      continue;
    }
    const io::TensorView& view = source.files[found->second].file().at(spec.name);
    if (view.shape != spec.shape) {
      wrong.push_back(spec.name + " is " + shape_text(view.shape) + " for " + shape_text(spec.shape));
    } else if (!at::isFloatingType(scalar_type(view.dtype))) {
      wrong.push_back(spec.name + " is " + std::string(io::dtype_name(view.dtype)) + " for a floating type");
    }
  }
  for (const auto& [name, file] : source.file_of) {
    if (!wanted.contains(name)) unexpected.push_back(name);
  }
  std::string message;
  const auto say = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) message += (message.empty() ? "" : "; ") + std::string(what) + " " + listed(names);
  };
  say("lacks", missing);
  say("has tensors that the config does not ask for:", unexpected);
  say("wrong shape or type:", wrong);
  if (!missing.empty() && !unexpected.empty())
    message += "; are these tensors of another architecture than " + model.config().kind->model_type + "?";
  if (!message.empty()) throw io::FileError(folder, message);
}

void write_text(const fs::path& path, const std::string& text) {
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

fs::path without_slash(const fs::path& folder) { return folder.has_filename() ? folder : folder.parent_path(); }

}  // namespace

CausalLM load_checkpoint(const fs::path& folder, const LoadOptions& options) {
  if (!fs::is_directory(folder)) throw io::FileError(folder, "is not a folder; a checkpoint is one, with config.json in it");
  CausalLM model(ModelConfig::read(folder / "config.json"));
  const Source source(folder);
  check(folder, source, model);
  if (!options.writable && options.device.is_cpu()) {
    for (const TensorFile& file : source.files) file.file().file().read_all();
  }
  for (size_t id = 0; id < model.parameters().size(); ++id) {
    const ParameterSpec& spec = model.table().specs()[id];
    const TensorFile& file = source.files[source.file_of.at(spec.name)];
    const at::ScalarType stored = scalar_type(file.file().at(spec.name).dtype);
    const at::ScalarType dtype = options.dtype.value_or(stored == at::kHalf ? at::kFloat : stored);
    const bool as_it_is = !options.writable && options.device.is_cpu() && dtype == stored;
    model.parameters()[id] = as_it_is ? file.mapped(spec.name) : file.copy(spec.name, dtype, options.device);
  }
  return model;
}

std::vector<WeightFile> weight_files(const CausalLM& model, int64_t shard_bytes) {
  std::vector<WeightFile> files(1);
  int64_t filled = 0;
  for (ParameterId id = 0; id < model.parameters().size(); ++id) {
    const auto bytes = static_cast<int64_t>(model.parameters()[id].nbytes());
    if (filled > 0 && filled + bytes > shard_bytes) {
      files.emplace_back();
      filled = 0;
    }
    files.back().tensors.emplace_back(model.table().specs()[id].name, model.parameters()[id]);
    filled += bytes;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    std::array<char, 64> name = {};
    std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    files[i].name = files.size() == 1 ? kWeights : name.data();
  }
  return files;
}

void write_weights(const fs::path& folder, const WeightFile& file) {
  write_tensor_file(folder / file.name, file.tensors, {{"format", "pt"}});
}

std::string weight_index(const std::vector<WeightFile>& files) {
  if (files.size() == 1) return "";
  Json map = Json::object();
  size_t total = 0;
  for (const WeightFile& file : files) {
    for (const auto& [tensor, value] : file.tensors) {
      map[tensor] = file.name;
      total += value.nbytes();
    }
  }
  return Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n";
}

void save_checkpoint(const CausalLM& model, const fs::path& where, int64_t shard_bytes, const std::function<void(const fs::path&)>& add) {
  io::NewFolder target(without_slash(where));
  write_text(target.path() / "config.json", model.config().json.dump(2) + "\n");
  const std::vector<WeightFile> files = weight_files(model, shard_bytes);
  for (const WeightFile& file : files) write_weights(target.path(), file);
  if (const std::string index = weight_index(files); !index.empty()) write_text(target.path() / kWeightIndex, index);
  if (add) add(target.path());
  target.commit();
}

uint64_t fingerprint(const CausalLM& model) {
  std::vector<uint64_t> parts(model.parameters().size());
  at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto id = static_cast<size_t>(begin); id < static_cast<size_t>(end); ++id) {
      const at::Tensor p = model.parameters()[id].detach().to(at::kCPU).contiguous();
      const auto name = io::hash64(model.table().specs()[id].name, static_cast<uint64_t>(p.scalar_type()));
      parts[id] = io::hash64({static_cast<const std::byte*>(p.const_data_ptr()), p.nbytes()}, name);
    }
  });
  return io::hash64(std::as_bytes(std::span(parts)), io::hash64(model.config().json.dump()));
}

}  // namespace cyfa
