#include "vlmtrain/planner/virtual_gpu.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/memory/libtorch_env.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::planner {

namespace {

/// Returns the error (kFailed) of a system call that was to `action`. Most of its causes are limits.
UserError make_process_error(std::string_view action, int error) {
  return run_error("cannot {}: {}; raise the limits of the process (ulimit -n, ulimit -u, ulimit -v)", action,
                   std::strerror(error));
}

/// Environment variable of processes that run on a virtual GPU on purpose: after
/// restart_on_virtual_gpu(), and dry-run processes.
constexpr const char* kVirtualGpuVariable = "VLMTRAIN_VIRTUAL_GPU";

/// The stub libraries in preload order. The driver's libraries (libcuda, libnvidia-ml) are
/// preloaded too: libraries load them by name, and would otherwise find a physical driver in
/// LD_LIBRARY_PATH or the default path first.
constexpr std::array kStubLibraries{"libcuda.so.1", "libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13",
                                    "libnvidia-ml.so.1"};
/// The stub libraries load it from their own folder.
constexpr const char* kCoreLibrary = "libvlmtrain_vgpu.so";

/// Returns the first file of the stub libraries that does not exist in `folder`; nullopt if all
/// exist.
std::optional<std::string> find_missing_library(const std::filesystem::path& folder) {
  std::vector<std::string> files(kStubLibraries.begin(), kStubLibraries.end());
  files.emplace_back(kCoreLibrary);
  const auto missing_file =
      std::ranges::find_if(files, [&](const auto& file) { return !std::filesystem::exists(folder / file); });
  return missing_file == files.end() ? std::nullopt : std::optional{*missing_file};
}

/// Returns the folder of the stub libraries: next to the program in a build, or in lib/ of an
/// installation. Throws UserError (kFailed) if there is none.
std::filesystem::path find_stub_library_folder() {
  const auto program_folder = get_program_folder();
  const std::array candidate_folders{program_folder / "vgpu", program_folder.parent_path() / "vgpu",
                                     program_folder.parent_path() / "lib" / "vlmtrain" / "vgpu"};
  for (const auto& folder : candidate_folders) {
    if (!find_missing_library(folder)) return folder;
  }
  const auto* const existing_folder =
      std::ranges::find_if(candidate_folders, [](const auto& folder) { return std::filesystem::is_directory(folder); });
  const auto& stub_library_folder =
      existing_folder == candidate_folders.end() ? candidate_folders.front() : *existing_folder;
  throw run_error(
      "the stub CUDA libraries are missing: no {} in {} (nor in {}); build them with the program (cmake --build "
      "--preset release), or copy the folder vgpu next to it",
      find_missing_library(stub_library_folder).value_or(kCoreLibrary), stub_library_folder.string(),
      candidate_folders.back().string());
}

/// Returns whether a preloaded library belongs to CUDA, such as a driver, a profiler, or a library
/// that shares a GPU among containers. These libraries would act on a GPU that this process does
/// not use.
bool is_cuda_library(const std::string& library) {
  // Without a slash, the loader searches several folders, so that only the name can be checked.
  std::string text = library;
  if (library.find('/') != std::string::npos) {
    std::ifstream file(library, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return std::ranges::any_of(std::array{"libcuda", "libnvidia", "cuInit", "cuGetProcAddress", "nvmlInit"},
                             [&](const char* word) { return text.find(word) != std::string::npos; });
}

/// Returns whether the folder's path has a space, which separates entries of LD_PRELOAD. The
/// libraries are then found by name through LD_LIBRARY_PATH. Throws UserError (kFailed) for a colon
/// or semicolon, which separate entries of LD_LIBRARY_PATH.
bool needs_ld_library_path(const std::filesystem::path& folder) {
  if (folder.string().find_first_of(":;") != std::string::npos) {
    throw run_error(
        "{}: dry runs cannot load libraries from a folder with a colon or semicolon in its name; move the program",
        folder.string());
  }
  return folder.string().find(' ') != std::string::npos;
}

/// Returns the value of LD_PRELOAD: the user's libraries except for those of CUDA, then the stub
/// libraries. The user's come first, since a sanitizer's runtime must be the first library.
std::string make_ld_preload_value(const std::filesystem::path& folder) {
  std::vector<std::string> preload_libraries;
  const char* const previous_ld_preload = std::getenv("LD_PRELOAD");
  std::string word;
  for (const char character : std::string(previous_ld_preload != nullptr ? previous_ld_preload : "") + ":") {
    if (character != ':' && character != ' ') {
      word += character;
      continue;
    }
    const bool is_stub = std::filesystem::path(word).parent_path() == folder;
    if (!word.empty() && !is_stub && !is_cuda_library(word)) preload_libraries.push_back(word);
    word.clear();
  }
  for (const char* const name : kStubLibraries)
    preload_libraries.push_back(needs_ld_library_path(folder) ? name : (folder / name).string());
  return fmt::format("{}", fmt::join(preload_libraries, ":"));
}

}  // namespace

EnvironmentVariables make_preload_environment() {
  const auto folder = find_stub_library_folder();
  EnvironmentVariables variables{{"LD_PRELOAD", make_ld_preload_value(folder)}, {kVirtualGpuVariable, "1"}};
  if (needs_ld_library_path(folder)) {
    const char* const previous_ld_library_path = std::getenv("LD_LIBRARY_PATH");
    variables.emplace_back("LD_LIBRARY_PATH", previous_ld_library_path != nullptr
                                                  ? fmt::format("{}:{}", folder.string(), previous_ld_library_path)
                                                  : folder.string());
  }
  return variables;
}

EnvironmentVariables make_gpu_environment(const VirtualGpu& gpu) {
  return {
      {"VLMTRAIN_VGPU_NAME", gpu.gpu},
      {"VLMTRAIN_VGPU_BYTES", gpu.memory_bytes ? std::to_string(*gpu.memory_bytes) : ""},
      {"VLMTRAIN_VGPU_REPORTED_BYTES", gpu.reported_bytes ? std::to_string(*gpu.reported_bytes) : ""},
      {"VLMTRAIN_VGPU_USED_BYTES", std::to_string(gpu.initial_used_bytes)},
      {"VLMTRAIN_VGPU_MULTIPROCESSORS", gpu.num_multiprocessors > 0 ? std::to_string(gpu.num_multiprocessors) : ""}};
}

bool is_passed_to_dry_runs(std::string_view variable) {
  // Settings of LibTorch, the CUDA libraries, the driver and its tools do not apply to a virtual
  // GPU.
  constexpr std::array kExcludedPrefixes{"PYTORCH_", "TORCH_", "CUDA_", "CUBLAS", "CUDNN_",        "NCCL_",
                                         "NVIDIA_",  "NVBIT_", "NSYS_", "NVLOG_", "VLMTRAIN_VGPU_"};
  return !memory::is_libtorch_env_setting(variable) && variable != "LD_AUDIT" &&
         variable != memory::kReservedLimitVariable &&
         std::ranges::none_of(kExcludedPrefixes, [&](const char* prefix) { return variable.starts_with(prefix); });
}

void check_address_space() {
  // vgpu/core/device_memory.cpp reserves 16 TiB and 4 GiB. The rest is an allowance for the CUDA
  // libraries. Not measured.
  constexpr size_t kRequiredAddressSpaceBytes = (size_t{16} << 40) + (size_t{16} << 30);
  void* const address_space =
      mmap(nullptr, kRequiredAddressSpaceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address_space != MAP_FAILED) {
    munmap(address_space, kRequiredAddressSpaceBytes);
    return;
  }
  throw run_error(
      "a virtual GPU reserves 18 TB of address space (no memory), which exceeds this process's limit ({}); raise it "
      "(ulimit -v unlimited); SLURM's --mem limits memory without it",
      std::strerror(errno));
}

bool is_on_virtual_gpu() {
  return vgpu::find_virtual_gpu_interface() != nullptr;
}

void restart_on_virtual_gpu(const VirtualGpu& gpu) {
  check_address_space();
  memory::ignore_libtorch_env_settings();
  for (const auto& variables : {make_preload_environment(), make_gpu_environment(gpu)}) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  restart_program();
  throw make_process_error("restart this program on a virtual GPU", errno);
}

void check_no_stub_libraries() {
  if (is_on_virtual_gpu() && std::getenv(kVirtualGpuVariable) == nullptr) {
    throw usage_error(
        "the stub CUDA libraries are preloaded, so this process has no real GPU; remove them from LD_PRELOAD, or "
        "select a virtual GPU with --device virtual:{}",
        vgpu::find_virtual_gpu_interface()->gpu_name());
  }
}

namespace {

// Environment variables of the child: the fields of SpawnParams.
constexpr const char* kParentPidVariable = "VLMTRAIN_DRY_RUN_PARENT";
constexpr const char* kWorkerFdsVariable = "VLMTRAIN_DRY_RUN_WORKERS";
/// Environment variable of a program that inherits a child: its process id and connections.
constexpr const char* kInheritedChildVariable = "VLMTRAIN_DRY_RUN_STARTED";

struct SocketPair {
  int parent_fd;
  int child_fd;
};

/// Returns connected sockets with close-on-exec, so that other children do not inherit them.
/// Sockets are used instead of pipes, since they allow writing to a dead child without SIGPIPE.
SocketPair make_socket_pair() {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    throw make_process_error("connect to a dry-run process", errno);
  }
  return {sockets[0], sockets[1]};
}

/// Attributes that block the signals that stop a run, which a terminal sends to the child too, and
/// restore the default action of SIGPIPE.
class SpawnAttributes {
 public:
  SpawnAttributes() {
    sigset_t blocked_signals;
    sigset_t broken_pipe_signals;
    sigemptyset(&blocked_signals);
    sigemptyset(&broken_pipe_signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&blocked_signals, signal);
    sigaddset(&broken_pipe_signals, SIGPIPE);
    posix_spawnattr_init(&spawn_attributes_);
    posix_spawnattr_setflags(&spawn_attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&spawn_attributes_, &blocked_signals);
    posix_spawnattr_setsigdefault(&spawn_attributes_, &broken_pipe_signals);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&spawn_attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;

  const posix_spawnattr_t* get() const { return &spawn_attributes_; }

 private:
  posix_spawnattr_t spawn_attributes_{};
};

/// The file descriptors that the child inherits.
class SpawnFileActions {
 public:
  SpawnFileActions() { posix_spawn_file_actions_init(&file_actions_); }
  ~SpawnFileActions() { posix_spawn_file_actions_destroy(&file_actions_); }
  SpawnFileActions(const SpawnFileActions&) = delete;
  SpawnFileActions& operator=(const SpawnFileActions&) = delete;

  void duplicate_descriptor(int from, int to) { posix_spawn_file_actions_adddup2(&file_actions_, from, to); }
  /// Keeps the descriptor open in the child: posix_spawn clears close-on-exec if source and target
  /// are equal.
  void inherit_descriptor(int descriptor) { duplicate_descriptor(descriptor, descriptor); }
  const posix_spawn_file_actions_t* get() const { return &file_actions_; }

 private:
  posix_spawn_file_actions_t file_actions_{};
};

/// Returns this process if the main thread calls, otherwise 0. The kernel kills a child when the
/// thread that spawned it ends (PR_SET_PDEATHSIG), which may be too early for other threads.
pid_t get_pid_on_main_thread() {
  return gettid() == getpid() ? getpid() : 0;
}

/// Returns the integers in a text, which are separated by spaces. Returns none for null.
std::vector<int> parse_ints(const char* text) {
  std::istringstream words(text != nullptr ? text : "");
  std::vector<int> numbers;
  for (int number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

/// Returns whether `pid` is a child of this process, running or not yet reaped.
bool is_child(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

size_t choose_num_workers() {
  return std::thread::hardware_concurrency() > 1 ? 2 : 1;
}

SpawnedChild spawn_child(const std::filesystem::path& program, size_t num_workers) {
  const auto preload_variables = make_preload_environment();
  std::map<std::string, std::string> environment_variables(preload_variables.begin(), preload_variables.end());
  SpawnedChild child;
  std::vector<int> child_fds;
  for (size_t i = 0; i < num_workers; ++i) {
    const SocketPair sockets = make_socket_pair();
    child.worker_fds.push_back(sockets.parent_fd);
    child_fds.push_back(sockets.child_fd);
  }
  SpawnFileActions file_actions;
  const std::vector<int> inherited_fds(child_fds.begin() + 1, child_fds.end());
  for (const int connection : inherited_fds) file_actions.inherit_descriptor(connection);
  file_actions.duplicate_descriptor(child_fds.front(), STDIN_FILENO);
  file_actions.duplicate_descriptor(child_fds.front(), STDOUT_FILENO);
  environment_variables[kParentPidVariable] = std::to_string(get_pid_on_main_thread());
  environment_variables[kWorkerFdsVariable] = fmt::format("{}", fmt::join(inherited_fds, " "));
  std::vector<std::string> arguments{"vlmtrain", "dry-run"};
  std::vector<std::string> environment = make_environment(environment_variables, is_passed_to_dry_runs);
  const int error =
      posix_spawn(&child.pid, program.c_str(), file_actions.get(), SpawnAttributes().get(),
                  make_null_terminated_array(arguments).data(), make_null_terminated_array(environment).data());
  for (const int connection : child_fds) close(connection);
  if (error == 0) return child;
  for (const int connection : child.worker_fds) close(connection);
  throw make_process_error("start the dry-run process", error);
}

void pass_child_through_exec(const SpawnedChild& child) {
  for (const int connection : child.worker_fds) fcntl(connection, F_SETFD, 0);
  setenv(kInheritedChildVariable, fmt::format("{} {}", child.pid, fmt::join(child.worker_fds, " ")).c_str(),
         /*overwrite=*/1);
}

std::optional<SpawnedChild> take_inherited_child() {
  const auto values = parse_ints(std::getenv(kInheritedChildVariable));
  unsetenv(kInheritedChildVariable);
  if (values.size() < 2 || !is_child(values.front())) return std::nullopt;
  SpawnedChild child{.pid = values.front(), .worker_fds = {values.begin() + 1, values.end()}};
  for (const int connection : child.worker_fds) fcntl(connection, F_SETFD, FD_CLOEXEC);
  return child;
}

SpawnParams read_spawn_params() {
  const auto parent = parse_ints(std::getenv(kParentPidVariable));
  return {.parent_pid = parent.empty() ? 0 : parent.front(), .worker_fds = parse_ints(std::getenv(kWorkerFdsVariable))};
}

void prestart_dry_run_process(const std::filesystem::path& program) {
  try {
    pass_child_through_exec(spawn_child(program, choose_num_workers()));
  } catch (const UserError&) {  // `program` runs into the same error and reports it
  }
}

}  // namespace vlmtrain::planner
