// The program inside of Python, and where its configs are: python/cyfa/__main__.py and _library.py call these.
#include "apps/program.h"

#include <torch/library.h>

#include <cstring>
#include <stdexcept>

#include "apps/provided.h"
#include "apps/ranks.h"

// Runs the command of argv[1], .. as the executable does; argv[0] is the path of the Python interpreter. Once in a process; returns the
// exit status.
extern "C" int cyfa_program(int argc, char** argv);

// The callbacks of a rank (apps/ranks.h): they write their answer to `text`, with a zero at its end, and return 0; or an error, and return
// 1.
extern "C" {
using CyfaJoin = int (*)(const char* device, double timeout, int context, char* text, int size);
using CyfaReport = int (*)(const char* error, int own, char* text, int size);
// What the program calls in a run of several ranks. Call it before cyfa_program.
void cyfa_launch(int rank, int ranks, int local_rank, int restarts, CyfaJoin join, CyfaReport report);
// Whether the program waits for other ranks at the moment. For another thread.
int cyfa_waits();
}

namespace {

constexpr int kAnswer = 1 << 14;

template <class Call>
std::string answer(const Call& call) {
  std::string text(kAnswer, '\0');
  const int failed = call(text.data(), kAnswer);
  text.resize(std::strlen(text.c_str()));
  if (failed != 0) throw std::runtime_error(text);
  return text;
}

}  // namespace

int cyfa_program(int argc, char** argv) { return cyfa::app::run_program(argc, argv, {argv[0], "-m", "cyfa"}); }

void cyfa_launch(int rank, int ranks, int local_rank, int restarts, CyfaJoin join, CyfaReport report) {
  cyfa::app::Launcher launcher = {rank, ranks, local_rank, restarts, {}, {}};
  launcher.join = [join](const std::string& device, double timeout, int context) {
    return answer([&](char* text, int size) { return join(device.c_str(), timeout, context, text, size); });
  };
  launcher.report = [report](const std::string& error, bool own) {
    return answer([&](char* text, int size) { return report(error.c_str(), own ? 1 : 0, text, size); });
  };
  cyfa::app::launch_by(std::move(launcher));
}

int cyfa_waits() { return cyfa::Group::waits() ? 1 : 0; }

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  library.def("shared_folder() -> str", []() -> std::string { return cyfa::app::provided_folder().string(); });
}
