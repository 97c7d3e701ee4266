// Ctrl-C and kill end the program at once, whatever it computes, but never in the middle of writing a file.
#pragma once

#include <mutex>

namespace cyfa::app {

// Takes over SIGINT, SIGTERM and SIGHUP for the whole process: call it before any other thread starts.
void watch_signals();

// While one of these lives, a signal waits.
class WriteGuard {
 public:
  WriteGuard();

 private:
  std::lock_guard<std::mutex> lock_;
};

// While one of these lives, the first signal is a wish that the work end soon, in order; the second ends it at once.
class GracefulStop {
 public:
  GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;
  ~GracefulStop();

  bool requested() const;
};

}  // namespace cyfa::app
