#include "vlmtrain/base/process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "vlmtrain/base/error.h"

namespace vlmtrain {

namespace {

using SteadyClock = std::chrono::steady_clock;

/// The arguments of set_program(), both empty before it is called.
struct SetProgram {
  std::filesystem::path path;
  std::vector<std::string> arguments;
};

SetProgram& set_program_state() {
  static SetProgram state;
  return state;
}

/// Runs the work in the child process and exits.
[[noreturn]] void run_work_and_exit(const std::function<void()>& work, const std::array<int, 2>& pipe_descriptors,
                                    pid_t parent_pid) {
  // A signal handler of the parent would communicate with threads that do not exist in the child.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) std::signal(signal, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_pid) _exit(1);  // The parent exited before prctl() took effect.
  dup2(pipe_descriptors[1], STDOUT_FILENO);
  close(pipe_descriptors[0]);
  close(pipe_descriptors[1]);
  work();
  std::fflush(stdout);
  _exit(0);
}

/// Reads until the end of the pipe or until `deadline`. Returns true if the end was reached.
bool read_until_eof(int descriptor, SteadyClock::time_point deadline, std::string& text) {
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto remaining_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
    if (remaining_ms <= 0) return false;
    pollfd poll_request{.fd = descriptor, .events = POLLIN, .revents = 0};
    if (poll(&poll_request, 1, static_cast<int>(remaining_ms)) <= 0) continue;
    const ssize_t count = read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

/// Returns false if the process does not exit by `deadline`, even after SIGKILL: a process that
/// waits for a driver cannot be killed. Polls, because waitpid() has no timeout.
bool wait_until_exit(pid_t pid, int& status, SteadyClock::time_point deadline) {
  for (;;) {
    const pid_t waited_pid = waitpid(pid, &status, WNOHANG);
    if (waited_pid == pid || (waited_pid < 0 && errno != EINTR)) return true;
    if (SteadyClock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

std::string get_host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::filesystem::path get_program_path() {
  const auto& path = set_program_state().path;
  return path.empty() ? std::filesystem::path("/proc/self/exe") : path;
}

std::filesystem::path get_program_folder() {
  const auto& path = set_program_state().path;
  std::error_code ignored_error;
  return (path.empty() ? std::filesystem::read_symlink("/proc/self/exe", ignored_error) : path).parent_path();
}

void set_program(const std::filesystem::path& path, const std::vector<std::string>& arguments) {
  set_program_state() = {path, arguments};
}

std::vector<std::string> read_process_arguments() {
  if (const auto& arguments = set_program_state().arguments; !arguments.empty()) return arguments;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::vector<char*> make_null_terminated_array(std::vector<std::string>& strings) {
  std::vector<char*> string_pointers;
  string_pointers.reserve(strings.size() + 1);
  for (auto& text : strings) string_pointers.push_back(text.data());
  string_pointers.push_back(nullptr);
  return string_pointers;
}

std::vector<std::string> make_environment(const std::map<std::string, std::string>& overrides,
                                          const std::function<bool(std::string_view name)>& should_keep) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (should_keep(name) && !overrides.contains(std::string(name))) entries.emplace_back(text);
  }
  for (const auto& [name, value] : overrides) {
    entries.push_back(name);
    entries.back().append("=").append(value);
  }
  return entries;
}

void restart_program() {
  std::vector<std::string> arguments = read_process_arguments();
  execv(get_program_path().c_str(), make_null_terminated_array(arguments).data());
}

std::string SubprocessResult::describe_exit() const {
  if (timed_out) return "did not finish in time";
  if (termination_signal != 0)
    return fmt::format("was ended by signal {} ({})", termination_signal, strsignal(termination_signal));
  return fmt::format("exited with code {}", exit_code);
}

SubprocessResult run_in_subprocess(const std::function<void()>& work, double timeout_seconds) {
  std::array<int, 2> pipe_descriptors{};
  if (pipe2(pipe_descriptors.data(), O_CLOEXEC) != 0)
    throw run_error("cannot create a pipe: {}; check the limit on open files (ulimit -n)", std::strerror(errno));
  std::fflush(nullptr);  // The child would print a copy of buffered output again.
  const pid_t parent_pid = getpid();
  const pid_t child_pid = fork();
  if (child_pid == 0) run_work_and_exit(work, pipe_descriptors, parent_pid);
  close(pipe_descriptors[1]);
  if (child_pid < 0) {
    const int error = errno;
    close(pipe_descriptors[0]);
    throw run_error("cannot start a child process: {}; check the limit on processes (ulimit -u)", std::strerror(error));
  }
  SubprocessResult result;
  const auto deadline = SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(
                                                 std::chrono::duration<double>(timeout_seconds));
  result.timed_out = !read_until_eof(pipe_descriptors[0], deadline, result.stdout_text);
  close(pipe_descriptors[0]);
  int status = 0;
  if (!result.timed_out) result.timed_out = !wait_until_exit(child_pid, status, deadline);
  if (result.timed_out) {
    kill(child_pid, SIGKILL);
    // Usually reaps the child at once. The second was chosen without measurement.
    wait_until_exit(child_pid, status, SteadyClock::now() + std::chrono::seconds(1));
    return result;
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.termination_signal = WTERMSIG(status);
  return result;
}

namespace {

/// Returns null and sets `problem` if no candidate can be loaded.
void* open_plugin_library(const char* name, std::string& problem) {
  std::error_code error;
  const auto program_folder = get_program_folder();
  for (const auto& candidate :
       {program_folder / name, program_folder.parent_path() / name, std::filesystem::path(name)}) {
    if (candidate.has_parent_path() && !std::filesystem::exists(candidate, error)) continue;
    if (void* const library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* const reason = dlerror();
    problem = reason == nullptr ? "unknown" : reason;
  }
  return nullptr;
}

}  // namespace

Plugin load_plugin(const char* library, const char* version_function, int version,
                   const std::vector<const char*>& function_names) {
  Plugin plugin;
  void* const library_handle = open_plugin_library(library, plugin.problem);
  if (library_handle == nullptr) return plugin;
  auto* const get_version = reinterpret_cast<int (*)()>(dlsym(library_handle, version_function));
  bool is_complete = get_version != nullptr && get_version() == version;
  for (const char* const function : function_names) {
    plugin.functions.push_back(dlsym(library_handle, function));
    is_complete = is_complete && plugin.functions.back() != nullptr;
  }
  if (is_complete) return plugin;
  return {.problem = "it was built for another version of this program"};
}

}  // namespace vlmtrain
