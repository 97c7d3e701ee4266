// Processes of this program that do a part of its work: sweeps of a benchmark, runs of an experiment.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace cyfa::app {

// A child process with a pipe to its standard input and one from its standard output. It has a process group of its own, so that Ctrl-C
// reaches this process alone, which decides what the child does. The destructor kills a child that still runs.
class Child {
 public:
  // Throws std::system_error if the process cannot be started.
  explicit Child(std::vector<std::string> words);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  int output() const { return output_; }  // to poll
  // Writes a line; false if the child no longer reads.
  bool send(const std::string& line);
  void close_input();
  // Reads what is there, waiting if there is nothing yet, and returns the whole lines; sets ended() at the end of the output.
  std::vector<std::string> lines();
  bool ended() const { return ended_; }
  void signal(int number) const;
  // Waits for the end: empty for exit status 0, else what happened.
  std::string wait();

 private:
  pid_t pid_ = -1;
  int input_ = -1, output_ = -1;
  bool ended_ = false;
  std::string part_;  // of a line
};

// Runs a command line and returns its standard output. Throws std::runtime_error if it fails.
std::string output_of(const std::vector<std::string>& words);

}  // namespace cyfa::app
