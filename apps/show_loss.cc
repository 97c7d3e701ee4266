// cyfa show loss: the losses of one or more training runs, as a table and as a picture.
#include <iostream>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/options.h"
#include "apps/output.h"
#include "cyfa/io/file_error.h"
#include "cyfa/train/loss_figure.h"
#include "cyfa/train/run_folder.h"

namespace cyfa::app {
namespace {

struct Options {
  std::vector<std::string> runs;
  std::string picture, title;
};

// The metrics of a run folder, or of a metrics.jsonl that is named itself.
RunLosses read_run(const std::string& name) {
  const std::filesystem::path given(name);
  const std::filesystem::path file = std::filesystem::is_directory(given) ? given / "metrics.jsonl" : given;
  if (!std::filesystem::exists(file)) throw io::FileError(file, "does not exist; wanted the folder of a run of `cyfa train`");
  RunLosses run = RunLosses::of(name, read_metrics(file));
  if (run.training.empty()) throw io::FileError(file, "has no row with a step and a loss; wanted the metrics of a run of `cyfa train`");
  return run;
}

int run_show(const Options& options) {
  std::vector<RunLosses> runs;
  size_t width = 3;
  for (const std::string& name : options.runs) {
    runs.push_back(read_run(name));
    width = std::max(width, name.size());
  }
  const auto column = static_cast<int>(width);
  std::cout << text("%-*s  %8s  %8s  %10s\n", column, "run", "steps", "loss", "validation");
  for (const RunLosses& run : runs) {
    std::string validation = "-";
    if (!run.validation.empty()) validation = text("%.4f", run.validation.back().y);
    const draw::Point last = run.training.back();
    std::cout << text("%-*s  %8.0f  %8.4f  %10s\n", column, run.name.c_str(), last.x, last.y, validation.c_str());
  }
  if (options.picture.empty()) return kDone;
  const std::string title = !options.title.empty() ? options.title : runs.size() == 1 ? "Loss of " + runs[0].name : "Losses";
  const WriteGuard guard;
  draw::write_figure(options.picture, loss_figure(title, runs));
  std::cout << "picture written to " << options.picture << '\n';
  return kDone;
}

}  // namespace

void add_show_loss(CLI::App& show, Action& action) {
  CLI::App* command = show.add_subcommand("loss", "Print the last losses of training runs, and draw their losses in one picture.");
  auto options = std::make_shared<Options>();
  command->add_option("runs", options->runs, "Folders of runs, or their metrics.jsonl")->required()->type_name("RUN");
  add_picture(command, &options->picture);
  command->add_option("--title", options->title, "Title of the picture")->default_str("none")->type_name("TEXT");
  command->callback([&action, options] { action = [options] { return run_show(*options); }; });
}

}  // namespace cyfa::app
