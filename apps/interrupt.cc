#include "apps/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace cyfa::app {
namespace {

constexpr int kWatched[] = {SIGINT, SIGTERM, SIGHUP};

// Never destroyed: the watching thread may still wait for it while the process exits.
std::mutex& writing() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::atomic<bool> graceful = false;
std::atomic<bool> asked = false;
std::atomic<const char*> first_words = nullptr;

// At a signal: whether the program goes on, because this is the first one and the work will end by itself.
bool goes_on() {
  if (!graceful || asked.exchange(true)) return false;
  if (const char* words = first_words) {
    const ssize_t written = ::write(STDERR_FILENO, words, std::strlen(words));
    static_cast<void>(written);
  }
  return true;
}

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kWatched) sigaddset(&set, signal);
  return set;
}

// The thread that watches. Never joined: it ends with the process.
pthread_t watcher;

// Threads from before watch_signals(), such as those that numpy starts when Python imports it, do not block the signals; one that gets a
// signal passes it on.
void pass_on(int signal) { pthread_kill(watcher, signal); }

// Ends the process by the signal itself, so that a shell or make sees the cause.
void watch(sigset_t set) {
  int signal = 0;
  do {
    if (sigwait(&set, &signal) != 0) return;
  } while (goes_on());
  const std::lock_guard<std::mutex> lock(writing());
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  kill(getpid(), signal);
  std::_Exit(128 + signal);
}

}  // namespace

void watch_signals() {
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_DFL);  // a parent may have it ignored
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread thread(watch, set);
  watcher = thread.native_handle();
  thread.detach();
  // In place of other handlers: Python's would wait for the interpreter.
  struct sigaction action = {};
  action.sa_handler = pass_on;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kWatched) sigaction(signal, &action, nullptr);
}

GracefulStop::GracefulStop(const char* words) {
  asked = false;
  first_words = words;
  graceful = true;
}
GracefulStop::~GracefulStop() { graceful = false; }
bool GracefulStop::requested() const { return asked; }

WriteGuard::WriteGuard() : lock_(writing()) {}

}  // namespace cyfa::app
