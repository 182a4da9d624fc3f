#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::memory {

/// What makes the loader find a library where it does.
enum class FoundBy {
  kProgram,      ///< the path that is written into the program
  kLibraryPath,  ///< LD_LIBRARY_PATH
  kPreload,      ///< LD_PRELOAD
  kSystem,       ///< the loader's cache or its default folders
};

const char* name_of(FoundBy found_by);

/// The LibTorch that this process runs on.
struct LibTorch {
  std::string compiled_for{};            ///< 2.11.0
  std::string loaded{};                  ///< the version that the library itself names; empty: it names none
  std::filesystem::path cpu_library{};   ///< libtorch_cpu.so as the loader has it; empty: not known
  std::filesystem::path core_library{};  ///< libc10.so
  std::filesystem::path cuda_library{};  ///< libtorch_cuda.so beside the first; empty: there is none
  FoundBy found_by = FoundBy::kProgram;

  bool is_the_one_compiled_for() const { return loaded.empty() || loaded == compiled_for; }
};

LibTorch libtorch();

/// The version in what at::show_config() says: TORCH_VERSION=2.11.0 among its words.
std::string version_in(const std::string& configuration);

/// Why the loader finds the folder, from what the environment holds (null: nothing) and the folders that it searches
/// for the program, in order.
FoundBy found_by(const std::filesystem::path& folder, const char* library_path, const char* preload,
                 const std::vector<std::filesystem::path>& searched);

}  // namespace vlmtrain::memory
