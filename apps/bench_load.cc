// cyfa bench load: the time to load a checkpoint beside a plain read of its files, and the memory that loading takes.
#include <fcntl.h>
#include <unistd.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/timing.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string folder, dtype, json;
  bool writable = false;
  int repeats = 5;
};

// Reads all weight files from beginning to end through a buffer.
void read_files(const fs::path& folder) {
  std::vector<char> buffer(size_t{4} << 20);
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw io::FileError(entry.path(), "cannot be read");
    while (::read(fd, buffer.data(), buffer.size()) > 0) {
    }
    ::close(fd);
  }
}

int run_load(const Options& options) {
  LoadOptions load;
  load.writable = options.writable;
  if (!options.dtype.empty()) load.dtype = parse_dtype(options.dtype);
  read_files(options.folder);  // fills the page cache
  reset_peak();
  const int64_t before = resident_bytes();
  double bytes = 0;
  {
    const CausalLM model = load_checkpoint(options.folder, load);
    for (const at::Tensor& p : model.parameters()) bytes += static_cast<double>(p.nbytes());
  }
  const auto peak = static_cast<double>(peak_resident_bytes() - before);
  const std::vector<Task> tasks = {{[&] { load_checkpoint(options.folder, load); }}, {[&] { read_files(options.folder); }}};
  const std::vector<Timing> t = measure(tasks, options.repeats, at::kCPU);
  const Json row = {{"impl", "cyfa"},
                    {"op", "load"},
                    {"model", fs::path(options.folder).filename().string()},
                    {"model_gb", bytes * 1e-9},
                    {"ms", t[0].median * 1e3},
                    {"ms_p10", t[0].p10 * 1e3},
                    {"ms_p90", t[0].p90 * 1e3},
                    {"read_ms", t[1].median * 1e3},
                    {"ratio_to_reading", t[0].median / t[1].median},
                    {"peak_gb", peak * 1e-9},
                    {"peak_over_model", peak / bytes},
                    {"commit", commit()},
                    {"date", utc_date()},
                    {"machine", cpu_model()}};
  if (prints_text(options.json)) {
    std::cout << text("%s: %.2f GB loaded in %.0f ms, files read in %.0f ms: ratio %.2f; peak memory %.2f GB, %.2f times the model\n",
                      options.folder.c_str(), bytes * 1e-9, t[0].median * 1e3, t[1].median * 1e3, t[0].median / t[1].median, peak * 1e-9,
                      peak / bytes);
  }
  write_rows(options.json, Json::array({row}));
  return kDone;
}

}  // namespace

void add_bench_load(CLI::App& bench, Action& action) {
  CLI::App* command =
      bench.add_subcommand("load", "Time the loading of a checkpoint beside a plain read of its files, both from the page cache.");
  auto options = std::make_shared<Options>();
  command->add_option("model", options->folder, "Checkpoint directory")->required()->type_name("DIR");
  add_dtype(command, &options->dtype, "the weights", {"fp32", "bf16"});
  command->add_flag("--writable", options->writable, "Load as for training: copy the weights instead of mapping the file");
  add_repeats(command, &options->repeats);
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_load(*options); }; });
}

}  // namespace cyfa::app
