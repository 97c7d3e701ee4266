#include "apps/commands.h"

namespace cyfa::app {

void add_verify(CLI::App& app, Action& action) {
  CLI::App* verify = app.add_subcommand("verify", "Compare results of this build with stored ones.");
  verify->require_subcommand(1);
  add_verify_op(*verify, action);
  add_verify_model(*verify, action);
}

}  // namespace cyfa::app
