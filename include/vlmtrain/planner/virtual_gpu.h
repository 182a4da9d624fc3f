#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::planner {

/// A virtual card for a process to run on (docs/virtual-gpu.md).
struct VirtualGpu {
  std::string gpu = "h100";             ///< a name from memory/gpu_table.h
  std::optional<int64_t> memory_bytes;  ///< instead of the table's
  /// What the card says that it has, instead of what it has. PyTorch's expandable segments reserve addresses in
  /// proportion to it, and which free block an allocation gets depends on how many are left.
  std::optional<int64_t> reported_bytes = std::nullopt;
  int64_t used_bytes = 0;   ///< taken from the start
  int multiprocessors = 0;  ///< 0: the table's
};

/// Environment variables with their values.
using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;

/// Those that put a process on a virtual card, whichever. LD_PRELOAD keeps what it holds, but for libraries that have
/// to do with CUDA. Throws UserError (kFailed) where the stand-ins for the CUDA libraries are not beside this program.
EnvironmentVariables make_preload_environment();

/// Those that say which card; they are read when CUDA is first called.
EnvironmentVariables make_gpu_environment(const VirtualGpu& gpu);

/// Whether a variable of this process's environment is passed on to a process that rehearses: not what LibTorch, CUDA,
/// the driver or the virtual GPU would take as a setting, so that the same plan is made everywhere.
bool is_passed_to_dry_runs(std::string_view variable);

/// True in a process that has the stand-ins loaded.
bool is_on_virtual_gpu();

/// Throws UserError (kFailed) where this process may not reserve the addresses of a virtual card's memory, of which it
/// takes none (ulimit -v): a process on such a card would have no device.
void require_address_space();

/// Starts this program again on `gpu`, with the same arguments; does not return. Throws as require_address_space.
[[noreturn]] void restart_on_virtual_gpu(const VirtualGpu& gpu);

/// Throws UserError (kUsage) if this process has the stand-ins although it should use a real card: they were preloaded
/// by someone else.
void reject_stub_libraries();

}  // namespace vlmtrain::planner
