#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::planner {

/// The virtual GPU of a process (docs/virtual-gpu.md).
struct VirtualGpu {
  std::string gpu = "h100";             ///< name in memory/gpu_table.h
  std::optional<int64_t> memory_bytes;  ///< overrides the table's size
  /// The size that the GPU reports; nullopt: its size. PyTorch's expandable segments reserve addresses in
  /// proportion to it, and the remaining addresses determine which free block an allocation gets.
  std::optional<int64_t> reported_bytes = std::nullopt;
  int64_t used_bytes = 0;   ///< in use from the start
  int multiprocessors = 0;  ///< 0: the table's
};

/// Names and values of environment variables.
using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;

/// Returns the variables that put a process on a virtual GPU of any kind. LD_PRELOAD keeps its entries
/// except for libraries of CUDA. Throws UserError (kFailed) if the stub libraries are not in this
/// program's folder.
EnvironmentVariables make_preload_environment();

/// Returns the variables that describe the virtual GPU. The first call of CUDA reads them.
EnvironmentVariables make_gpu_environment(const VirtualGpu& gpu);

/// Returns whether a dry-run process inherits the variable. Settings of LibTorch, CUDA, the driver and
/// the virtual GPU are not inherited, so that a plan does not depend on the environment.
bool is_passed_to_dry_runs(std::string_view variable);

/// Returns whether this process has loaded the stub libraries.
bool is_on_virtual_gpu();

/// Throws UserError (kFailed) if `ulimit -v` forbids to reserve the addresses of a virtual GPU. The
/// addresses take no memory, but without them the process would have no device.
void require_address_space();

/// Replaces this process by the same program with the same arguments on `gpu`; does not return. Throws
/// the exceptions of require_address_space().
[[noreturn]] void restart_on_virtual_gpu(const VirtualGpu& gpu);

/// Throws UserError (kUsage) if the stub libraries are preloaded in a process that is to use a physical
/// GPU.
void reject_stub_libraries();

}  // namespace vlmtrain::planner
