#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::memory {

/// What makes the loader find a library where it does.
enum class LibrarySource {
  kProgram,      ///< the path that is written into the program
  kLibraryPath,  ///< LD_LIBRARY_PATH
  kPreload,      ///< LD_PRELOAD
  kSystem,       ///< the loader's cache or its default folders
};

const char* to_string(LibrarySource source);

/// The LibTorch that this process runs on.
struct LibTorch {
  std::string compiled_version{};        ///< 2.11.0
  std::string loaded_version{};          ///< the version that the library itself names; empty: it names none
  std::filesystem::path cpu_library{};   ///< libtorch_cpu.so as the loader has it; empty: not known
  std::filesystem::path core_library{};  ///< libc10.so
  std::filesystem::path cuda_library{};  ///< libtorch_cuda.so beside the first; empty: there is none
  LibrarySource source = LibrarySource::kProgram;

  bool matches_compiled_version() const { return loaded_version.empty() || loaded_version == compiled_version; }
};

LibTorch describe_libtorch();

/// The version in what at::show_config() says: TORCH_VERSION=2.11.0 among its words.
std::string parse_torch_version(const std::string& configuration);

/// Why the loader finds the folder, from what the environment holds (null: nothing) and the folders that it searches
/// for the program, in order.
LibrarySource find_library_source(const std::filesystem::path& folder, const char* library_path, const char* preload,
                                  const std::vector<std::filesystem::path>& search_folders);

}  // namespace vlmtrain::memory
