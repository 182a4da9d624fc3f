#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

namespace vlmtrain::planner {

/// A dry-run child process and the parent's ends of the connections to its workers. Other children
/// do not inherit the connections. The owner closes them and waits for the process.
struct SpawnedChild {
  pid_t process = -1;
  std::vector<int> connections;
};

/// Returns the number of workers that speed up planning on this machine.
size_t num_useful_workers();

/// Starts `program` on a virtual GPU and returns at once. The first line of the first connection
/// describes the GPU (src/planner/dry_run/protocol.h), so that the child can start before the GPU is
/// known. Throws UserError (kFailed) if the child cannot be started, and the exceptions of
/// make_preload_environment().
SpawnedChild spawn_child(const std::filesystem::path& program, size_t workers);

/// Passes the child to the program that this process becomes by exec, which calls
/// take_inherited_child().
void pass_child_through_exec(const SpawnedChild& child);

/// Returns the child that pass_child_through_exec() passed to this process. Later calls return nullopt.
std::optional<SpawnedChild> take_inherited_child();

/// The environment of a child.
struct SpawnInfo {
  pid_t parent = 0;              ///< the child dies with this process; 0: a thread other than the main one spawned it
  std::vector<int> connections;  ///< of all workers except the first, which uses stdin and stdout
};
/// Reads the environment of this child.
SpawnInfo read_spawn_info();

/// Starts a dry-run process right before this process becomes `program` by exec, so that both load
/// LibTorch at the same time. The first DryRunProcess of `program` takes it. Ignores errors: `program`
/// meets and reports the same ones.
void prestart_dry_run_process(const std::filesystem::path& program);

}  // namespace vlmtrain::planner
