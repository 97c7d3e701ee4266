#include "apps/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

namespace cyfa::app {
namespace {

// Never destroyed: the watcher may still wait for it while the process exits.
std::mutex& writing() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// Dies of the signal itself, so that a shell or make sees what happened.
void watch(sigset_t set) {
  int signal = 0;
  if (sigwait(&set, &signal) != 0) return;
  const std::lock_guard<std::mutex> lock(writing());
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  kill(getpid(), signal);
  std::_Exit(128 + signal);
}

}  // namespace

void watch_signals() {
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread(watch, set).detach();
}

WriteGuard::WriteGuard() : lock_(writing()) {}

}  // namespace cyfa::app
