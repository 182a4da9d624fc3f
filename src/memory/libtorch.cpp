#include "vlmtrain/memory/libtorch.h"

#include <dlfcn.h>
#include <link.h>

#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::memory {

namespace {

/// Returns the path of the loaded library with this file name, or an empty path.
std::filesystem::path find_loaded_library(std::string_view name) {
  struct LibrarySearch {
    std::string_view name;
    std::filesystem::path path;
  } search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& target = *static_cast<LibrarySearch*>(data);
        const std::filesystem::path path = info->dlpi_name;
        if (path.filename() != target.name) return 0;
        target.path = path;
        return 1;
      },
      &search);
  return search.path;
}

/// Returns the loader's search directories for the program, in order.
std::vector<std::filesystem::path> list_loader_search_folders() {
  std::vector<std::filesystem::path> folders;
  void* const program_handle = dlopen(nullptr, RTLD_NOW);
  Dl_serinfo size{};
  if (program_handle == nullptr || dlinfo(program_handle, RTLD_DI_SERINFOSIZE, &size) != 0) return folders;
  std::vector<std::max_align_t> serinfo_buffer(size.dls_size / sizeof(std::max_align_t) + 1);
  auto* const serinfo = reinterpret_cast<Dl_serinfo*>(serinfo_buffer.data());
  serinfo->dls_size = size.dls_size;
  serinfo->dls_cnt = size.dls_cnt;
  if (dlinfo(program_handle, RTLD_DI_SERINFO, serinfo) != 0) return folders;
  for (unsigned i = 0; i < serinfo->dls_cnt; ++i) folders.emplace_back(serinfo->dls_serpath[i].dls_name);
  return folders;
}

/// Returns the nonempty parts of `text`, which may be null. Any character of `separators`
/// separates.
std::vector<std::filesystem::path> split_paths(const char* text, std::string_view separators) {
  std::vector<std::filesystem::path> paths;
  std::string path;
  for (const char character : std::string(text != nullptr ? text : "") + separators.front()) {
    if (separators.find(character) == std::string_view::npos) {
      path += character;
    } else if (!path.empty()) {
      paths.emplace_back(std::exchange(path, ""));
    }
  }
  return paths;
}

bool is_same_folder(const std::filesystem::path& left, const std::filesystem::path& right) {
  std::error_code error;
  return left == right || std::filesystem::equivalent(left, right, error);
}

}  // namespace

const char* to_string(LibrarySource source) {
  switch (source) {
    case LibrarySource::kLibraryPath:
      return "LD_LIBRARY_PATH";
    case LibrarySource::kPreload:
      return "LD_PRELOAD";
    case LibrarySource::kSystem:
      return "the system's library path";
    case LibrarySource::kRpath:
      break;
  }
  return "the program's own path";
}

std::string parse_torch_version(const std::string& configuration) {
  constexpr std::string_view kVersionMarker = "TORCH_VERSION=";
  const size_t position = configuration.find(kVersionMarker);
  if (position == std::string::npos) return {};
  const auto first = configuration.begin() + static_cast<std::ptrdiff_t>(position + kVersionMarker.size());
  return {first, std::find_if(first, configuration.end(),
                              [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '+'; })};
}

LibrarySource find_library_source(const std::filesystem::path& folder, const char* library_path, const char* preload,
                                  const std::vector<std::filesystem::path>& search_folders) {
  const auto count_folder_matches = [&](const auto& folders) {
    return std::ranges::count_if(folders, [&](const auto& candidate) { return is_same_folder(candidate, folder); });
  };
  const auto preloaded_libraries = split_paths(preload, ": ");
  if (std::ranges::any_of(preloaded_libraries, [&](const auto& library) {
        return library.filename() == "libtorch_cpu.so" && is_same_folder(library.parent_path(), folder);
      })) {
    return LibrarySource::kPreload;
  }
  constexpr std::array<const char*, 6> kSystemFolders{"/lib",       "/usr/lib",       "/lib64",
                                                      "/usr/lib64", "/usr/local/lib", "/lib/x86_64-linux-gnu"};
  if (count_folder_matches(kSystemFolders) > 0) return LibrarySource::kSystem;
  // The loader's list contains the folders of both the program's path and LD_LIBRARY_PATH. The
  // program's path has precedence (DT_RPATH, set by cmake/LibTorch.cmake).
  const auto num_library_path_matches = count_folder_matches(split_paths(library_path, ":;"));
  if (count_folder_matches(search_folders) > num_library_path_matches) return LibrarySource::kRpath;
  return num_library_path_matches > 0 ? LibrarySource::kLibraryPath : LibrarySource::kSystem;
}

LibTorchInfo get_libtorch_info() {
  LibTorchInfo result{.compiled_version = TORCH_VERSION,
                      .loaded_version = parse_torch_version(at::show_config()),
                      .cpu_library = find_loaded_library("libtorch_cpu.so"),
                      .c10_library = find_loaded_library("libc10.so")};
  if (result.cpu_library.empty()) return result;
  const auto folder = result.cpu_library.parent_path();
  const auto cuda_library = folder / "libtorch_cuda.so";
  std::error_code error;
  if (std::filesystem::exists(cuda_library, error)) result.cuda_library = cuda_library;
  result.source = find_library_source(folder, std::getenv("LD_LIBRARY_PATH"), std::getenv("LD_PRELOAD"),
                                      list_loader_search_folders());
  return result;
}

}  // namespace vlmtrain::memory
