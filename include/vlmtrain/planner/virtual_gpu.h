#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::planner {

/// The virtual GPU of a process (docs/explanation/virtual-gpu.md).
struct VirtualGpu {
  std::string gpu = "h100";             ///< name in memory/gpu_table.h
  std::optional<int64_t> memory_bytes;  ///< actual memory size; nullopt: the size in the table
  /// The memory size that the GPU reports; nullopt: the actual size. PyTorch's expandable segments
  /// reserve address space in proportion to it. The address ranges determine which free block an
  /// allocation gets.
  std::optional<int64_t> reported_bytes = std::nullopt;
  int64_t initial_used_bytes = 0;  ///< memory in use from the start, like that of other processes
  int num_multiprocessors = 0;     ///< 0: the number in the table
};

/// Names and values of environment variables.
using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;

/// Returns the environment variables that preload the stub libraries into a process. LD_PRELOAD
/// keeps its other entries, except for libraries of CUDA. Throws UserError (kFailed) if the stub
/// libraries are not found in this program's folder, or the path of that folder has a colon or
/// semicolon.
EnvironmentVariables make_preload_environment();

/// Returns the environment variables that describe the virtual GPU. The stub libraries read them at
/// the first CUDA call.
EnvironmentVariables make_gpu_environment(const VirtualGpu& gpu);

/// Returns whether a dry-run process inherits the environment variable of this name. Settings of
/// LibTorch, CUDA, the driver and the virtual GPU are not inherited, so that a plan does not depend
/// on them.
bool is_passed_to_dry_runs(std::string_view variable);

/// Returns whether this process has loaded the stub libraries.
bool is_on_virtual_gpu();

/// Throws UserError (kFailed) if this process cannot reserve the address space of a virtual GPU,
/// usually because of `ulimit -v`. The address space takes no memory, but a virtual GPU cannot work
/// without it.
void check_address_space();

/// Restarts this program by exec, with the same arguments, on the virtual GPU `gpu`. Does not
/// return. Throws UserError (kFailed) if the restart fails, and the exceptions of
/// check_address_space() and make_preload_environment().
[[noreturn]] void restart_on_virtual_gpu(const VirtualGpu& gpu);

/// Throws UserError (kUsage) if a user has preloaded the stub libraries, so that a process that
/// should use a physical GPU has none.
void check_no_stub_libraries();

/// A dry-run child process and the parent's ends of the connections to its workers. Other children
/// do not inherit the connections. A plain struct without a destructor: its user closes the
/// connections and waits for the process.
struct SpawnedChild {
  pid_t pid = -1;
  std::vector<int> worker_fds;  ///< file descriptors of sockets, one per worker
};

/// Returns the number of workers to start on this machine: 2, or 1 on a single processor.
size_t choose_num_workers();

/// Starts `program` as a child process on a virtual GPU and returns before it is ready. The GPU is
/// not an argument, so that the child can start before the GPU is known. The parent describes it in
/// the first line that it writes to the first connection: {"gpu": make_gpu_environment()}. Throws
/// UserError (kFailed) if the child cannot be started, and the exceptions of
/// make_preload_environment().
SpawnedChild spawn_child(const std::filesystem::path& program, size_t num_workers);

/// Lets the child survive an exec of this process. The program that the process becomes calls
/// take_inherited_child() to own the child.
void pass_child_through_exec(const SpawnedChild& child);

/// Returns the child that pass_child_through_exec() passed to this process. Later calls return
/// nullopt.
std::optional<SpawnedChild> take_inherited_child();

/// The data that spawn_child() passes to the child in its environment.
struct SpawnParams {
  /// The process that the child dies with. 0 if a thread other than the main one spawned the child.
  pid_t parent_pid = 0;
  /// File descriptors of all workers except the first, which uses stdin and stdout.
  std::vector<int> worker_fds;
};
/// Reads the SpawnParams of this process, which spawn_child() started.
SpawnParams read_spawn_params();

/// Starts a dry-run process right before this process becomes `program` by exec, so that both load
/// LibTorch at the same time. The first DryRunProcess of `program` uses it. Ignores errors, since
/// `program` runs into the same ones and reports them.
void prestart_dry_run_process(const std::filesystem::path& program);

}  // namespace vlmtrain::planner
