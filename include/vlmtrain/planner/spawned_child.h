#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

namespace vlmtrain::planner {

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
