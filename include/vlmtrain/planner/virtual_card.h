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
struct VirtualCard {
  std::string gpu = "h100";             ///< a name from memory/gpu_table.h
  std::optional<int64_t> memory_bytes;  ///< instead of the table's
  /// What the card says that it has, instead of what it has. PyTorch's expandable segments reserve addresses in
  /// proportion to it, and which free block an allocation gets depends on how many are left.
  std::optional<int64_t> reported_bytes = std::nullopt;
  int64_t used_bytes = 0;   ///< taken from the start
  int multiprocessors = 0;  ///< 0: the table's
};

/// Environment variables with their values.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// Those that put a process on a virtual card, whichever. LD_PRELOAD keeps what it holds, but for libraries that have
/// to do with CUDA. Throws UserError (kFailed) where the stand-ins for the CUDA libraries are not beside this program.
Variables environment_for_virtual_cards();

/// Those that say which card; they are read when CUDA is first called.
Variables settings_of(const VirtualCard& card);

/// Whether a variable of this process's environment is passed on to a process that rehearses: not what LibTorch, CUDA,
/// the driver or the virtual GPU would take as a setting, so that the same plan is made everywhere.
bool reaches_rehearsals(std::string_view variable);

/// True in a process that has the stand-ins loaded.
bool on_virtual_card();

/// Throws UserError (kFailed) where this process may not reserve the addresses of a virtual card's memory, of which it
/// takes none (ulimit -v): a process on such a card would have no device.
void require_addresses();

/// Starts this program again on `card`, with the same arguments; does not return. Throws as require_addresses.
[[noreturn]] void restart_on(const VirtualCard& card);

/// Throws UserError (kUsage) if this process has the stand-ins although it should use a real card: they were preloaded
/// by someone else.
void refuse_stand_ins();

}  // namespace vlmtrain::planner
