// Ctrl-C and kill end the program at once, but never while it writes a file.
#pragma once

#include <mutex>

namespace cyfa::app {

// Handles SIGINT, SIGTERM and SIGHUP for the whole process, and ignores SIGXFSZ, so that writing beyond the file size limit (ulimit -f)
// fails with an error, as on a full disk. A reader that closes its end of a pipe, as `| head` does, ends the program silently (SIGPIPE).
// The calling thread and those that it starts are not disturbed by the signals; call it before work starts.
void watch_signals();

// Delays signals while it exists.
class WriteGuard {
 public:
  WriteGuard();

 private:
  std::lock_guard<std::mutex> lock_;
};

// While it exists, the first signal only sets requested(), so that the work can save and end; the second ends the program at once.
class GracefulStop {
 public:
  // `words` go to the standard error at the first signal; they stay valid until the program ends. Null for none.
  explicit GracefulStop(const char* words = nullptr);
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;
  ~GracefulStop();

  bool requested() const;
};

}  // namespace cyfa::app
