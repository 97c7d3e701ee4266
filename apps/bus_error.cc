#include "apps/bus_error.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

#include "apps/commands.h"
#include "cyfa/io/mapped_file.h"

namespace cyfa::app {
namespace {

// Only calls that are safe in a signal handler: the interrupted thread may hold any lock.
void say(const char* text) {
  size_t left = std::strlen(text);
  while (left > 0) {
    const ssize_t count = write(STDERR_FILENO, text, left);
    if (count <= 0) return;
    text += count;
    left -= static_cast<size_t>(count);
  }
}

void handle(int signal, siginfo_t* info, void*) {
  const char* name = io::mapped_file_at(info->si_addr);
  if (name == nullptr) {
    std::signal(signal, SIG_DFL);  // the access is repeated after the return
    return;
  }
  say("cyfa: error: ");
  say(name);
  say(": has become shorter while the program was reading it; replace a file by renaming a new one over it, not by writing into it\n");
  _exit(kBadInput);
}

}  // namespace

void report_lost_pages() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace cyfa::app
