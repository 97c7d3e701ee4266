#include "apps/commands.h"

namespace cyfa::app {

void add_show(CLI::App& app, Action& action) {
  CLI::App* show = app.add_subcommand("show", "Draw how the operator works, the losses of runs, and lines from rows of JSON.");
  show->require_subcommand(1);
  add_show_clock(*show, action);
  add_show_loss(*show, action);
  add_show_curves(*show, action);
}

}  // namespace cyfa::app
