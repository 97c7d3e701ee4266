#include "apps/commands.h"

namespace cyfa::app {

void add_show(CLI::App& app, Action& action) {
  CLI::App* show = app.add_subcommand("show", "Draw how the operator works.");
  show->require_subcommand(1);
  add_show_clock(*show, action);
}

}  // namespace cyfa::app
