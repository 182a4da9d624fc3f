#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

namespace vlmtrain::planner {

/// A process that was started as `vlmtrain rehearse`, and this end of a connection to each of its workers, which are
/// not inherited by other children. Whoever holds it closes them and waits for the process.
struct SpawnedChild {
  pid_t process = -1;
  std::vector<int> connections;
};

/// How many workers a planner has use for on this machine.
size_t num_useful_workers();

/// Starts `program` on a virtual card, and returns at once. It is told which card by the first line of its first
/// connection (src/planner/protocol.h), so that it may be started before that is known. Throws UserError (kFailed)
/// where it cannot be started, and as make_preload_environment.
SpawnedChild spawn_child(const std::filesystem::path& program, size_t workers);

/// Leaves a child to the program that this process becomes next by exec, which has it from take_inherited_child().
void pass_child_through_exec(const SpawnedChild& child);

/// What pass_child_through_exec left to this process, once.
std::optional<SpawnedChild> take_inherited_child();

/// What a child finds in its environment.
struct SpawnInfo {
  pid_t parent = 0;              ///< the process that it dies with; 0: another thread than the main one started it
  std::vector<int> connections;  ///< to its workers behind the first, whose are stdin and stdout
};
SpawnInfo read_spawn_info();

/// Starts the process that rehearses while this process is about to become `program` by exec: both load LibTorch then,
/// side by side, and the first DryRunProcess there takes it. What stands in its way is not said: it is said there.
void prestart_dry_run_process(const std::filesystem::path& program);

}  // namespace vlmtrain::planner
