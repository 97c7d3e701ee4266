#include "cyfa/model/checkpoint.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>

#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/io/json.h"
#include "cyfa/model/tensor_file.h"

namespace cyfa {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
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
    } else if (fs::exists(folder / kIndex)) {
      read_index(folder);
    } else {
      throw io::FileError(folder, std::string("holds neither ") + kWeights + " nor " + kIndex);
    }
  }

 private:
  void read_index(const fs::path& folder) {
    const fs::path path = folder / kIndex;
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

constexpr const char* kPart = ".part-";  // a folder that process N is still writing is NAME.part-N

// Removes what killed processes left of a folder they were writing: NAME.part-N, if there is no process N.
void remove_dead_parts(const fs::path& folder) {
  const std::string begin = folder.filename().string() + kPart;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.has_parent_path() ? folder.parent_path() : fs::path("."), error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin)) continue;
    pid_t process = 0;
    const auto [end, wrong] = std::from_chars(name.data() + begin.size(), name.data() + name.size(), process);
    if (wrong != std::errc() || end != name.data() + name.size() || process <= 0) continue;
    if (::kill(process, 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), error);
  }
}

// Writes a folder under a temporary name and renames it when it is complete.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& folder) : folder_(folder), temporary_(folder.string() + kPart + std::to_string(::getpid())) {
    std::error_code error;
    if (fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder, error))) {
      throw io::FileError(folder, "exists and is not an empty folder; a checkpoint is not written over another");
    }
    remove_dead_parts(folder);
    fs::remove_all(temporary_, error);
    if (!fs::create_directories(temporary_, error) && error) throw io::FileError(temporary_, "cannot be created: " + error.message());
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code error;
    if (!temporary_.empty()) fs::remove_all(temporary_, error);
  }
  const fs::path& path() const { return temporary_; }
  void commit() {
    std::error_code error;
    fs::remove(folder_, error);  // removes an existing empty folder
    fs::rename(temporary_, folder_, error);
    if (error) throw io::FileError(folder_, "cannot be put in place: " + error.message());
    temporary_.clear();
  }

 private:
  fs::path folder_, temporary_;
};

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

void save_checkpoint(const CausalLM& model, const fs::path& where, int64_t shard_bytes, const std::function<void(const fs::path&)>& add) {
  const fs::path folder = without_slash(where);
  NewFolder target(folder);
  write_text(target.path() / "config.json", model.config().json.dump(2) + "\n");
  std::vector<NamedTensors> shards(1);
  int64_t filled = 0, total = 0;
  for (size_t id = 0; id < model.parameters().size(); ++id) {
    const at::Tensor& p = model.parameters()[id];
    const auto bytes = static_cast<int64_t>(p.nbytes());
    if (filled > 0 && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().emplace_back(model.table().specs()[id].name, p);
    filled += bytes;
    total += bytes;
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (shards.size() == 1) {
    write_tensor_file(target.path() / kWeights, shards[0], metadata);
  } else {
    Json map = Json::object();
    for (size_t i = 0; i < shards.size(); ++i) {
      std::array<char, 64> name = {};
      std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
      write_tensor_file(target.path() / name.data(), shards[i], metadata);
      for (const auto& [tensor, value] : shards[i]) map[tensor] = name.data();
    }
    write_text(target.path() / kIndex, Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
  }
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
