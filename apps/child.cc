#include "apps/child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <stdexcept>
#include <system_error>

#include "apps/output.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves the declaration to the program

namespace cyfa::app {
namespace {

void close_once(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

}  // namespace

Child::Child(std::vector<std::string> words) {
  int in[2] = {-1, -1}, out[2] = {-1, -1};
  // A socket, because writing to a pipe whose reader is gone would end this process.
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0) throw std::system_error(errno, std::generic_category(), "socketpair");
  if (pipe2(out, O_CLOEXEC) != 0) {
    const int error = errno;
    close(in[0]);
    close(in[1]);
    throw std::system_error(error, std::generic_category(), "pipe");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int error = posix_spawn(&pid_, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(in[0]);
  close(out[1]);
  input_ = in[1];
  output_ = out[0];
  if (error == 0) return;
  close_once(input_);
  close_once(output_);
  throw std::system_error(error, std::generic_category(), "starting this program again");
}

Child::~Child() {
  close_once(input_);
  close_once(output_);
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool Child::send(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = ::send(input_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) done += static_cast<size_t>(count);
  }
  return true;
}

void Child::close_input() { close_once(input_); }

std::vector<std::string> Child::lines() {
  std::vector<std::string> whole;
  char buffer[4096];
  const ssize_t count = read(output_, buffer, sizeof buffer);
  if (count == 0 || (count < 0 && errno != EINTR)) ended_ = true;
  if (count > 0) part_.append(buffer, static_cast<size_t>(count));
  for (size_t end = 0; (end = part_.find('\n')) != std::string::npos; part_.erase(0, end + 1)) whole.push_back(part_.substr(0, end));
  return whole;
}

void Child::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

std::string Child::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFSIGNALED(status)) return text("ended by signal %d (out of memory?)", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return text("exit status %d", WEXITSTATUS(status));
  return "";
}

std::string output_of(const std::vector<std::string>& words) {
  Child child(words);
  child.close_input();
  std::string out;
  while (!child.ended()) {
    for (const std::string& line : child.lines()) out += line + "\n";
  }
  if (const std::string problem = child.wait(); !problem.empty()) throw std::runtime_error("a run of the sweep failed: " + problem);
  return out;
}

}  // namespace cyfa::app
