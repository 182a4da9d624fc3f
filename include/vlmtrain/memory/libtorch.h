#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::memory {

/// The reason why the loader finds a library where it does.
enum class LibrarySource {
  kRpath,        ///< the path in the program (DT_RPATH)
  kLibraryPath,  ///< LD_LIBRARY_PATH
  kPreload,      ///< LD_PRELOAD
  kSystem,       ///< the loader's cache or default directories
};

/// Returns a name for messages.
const char* to_string(LibrarySource source);

/// The LibTorch libraries of this process.
struct LibTorchInfo {
  std::string compiled_version{};        ///< "2.11.0"
  std::string loaded_version{};          ///< as the library reports it; may be empty
  std::filesystem::path cpu_library{};   ///< loaded libtorch_cpu.so; empty if unknown
  std::filesystem::path c10_library{};   ///< loaded libc10.so
  std::filesystem::path cuda_library{};  ///< libtorch_cuda.so in the same directory; empty if it does not exist
  LibrarySource source = LibrarySource::kRpath;

  bool matches_compiled_version() const { return loaded_version.empty() || loaded_version == compiled_version; }
};

/// Returns the libraries of this process. Never throws for a missing library; its path is empty.
LibTorchInfo get_libtorch_info();

/// Returns the value of TORCH_VERSION in the text of at::show_config(), or an empty string.
std::string parse_torch_version(const std::string& configuration);

/// Returns the reason why the loader finds `folder`, which contains libtorch_cpu.so.
/// `library_path` and `preload` are the values of LD_LIBRARY_PATH and LD_PRELOAD, null if not set.
/// `search_folders` are the loader's search directories in order.
LibrarySource find_library_source(const std::filesystem::path& folder, const char* library_path, const char* preload,
                                  const std::vector<std::filesystem::path>& search_folders);

}  // namespace vlmtrain::memory
