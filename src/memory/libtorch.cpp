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

/// The path of a loaded library of this name; empty where none is loaded.
std::filesystem::path loaded_library(std::string_view name) {
  struct Search {
    std::string_view name;
    std::filesystem::path path;
  } search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const std::filesystem::path path = info->dlpi_name;
        if (path.filename() != wanted.name) return 0;
        wanted.path = path;
        return 1;
      },
      &search);
  return search.path;
}

/// Where the loader looks for libraries of the program, in its order.
std::vector<std::filesystem::path> searched_folders() {
  std::vector<std::filesystem::path> folders;
  void* const program = dlopen(nullptr, RTLD_NOW);
  Dl_serinfo size{};
  if (program == nullptr || dlinfo(program, RTLD_DI_SERINFOSIZE, &size) != 0) return folders;
  std::vector<std::max_align_t> memory(size.dls_size / sizeof(std::max_align_t) + 1);
  auto* const list = reinterpret_cast<Dl_serinfo*>(memory.data());
  list->dls_size = size.dls_size;
  list->dls_cnt = size.dls_cnt;
  if (dlinfo(program, RTLD_DI_SERINFO, list) != 0) return folders;
  for (unsigned i = 0; i < list->dls_cnt; ++i) folders.emplace_back(list->dls_serpath[i].dls_name);
  return folders;
}

std::vector<std::filesystem::path> split(const char* text, std::string_view separators) {
  std::vector<std::filesystem::path> parts;
  std::string part;
  for (const char character : std::string(text != nullptr ? text : "") + separators.front()) {
    if (separators.find(character) == std::string_view::npos) {
      part += character;
    } else if (!part.empty()) {
      parts.emplace_back(std::exchange(part, ""));
    }
  }
  return parts;
}

bool is_same_folder(const std::filesystem::path& one, const std::filesystem::path& other) {
  std::error_code unknown;
  return one == other || std::filesystem::equivalent(one, other, unknown);
}

}  // namespace

const char* name_of(FoundBy found_by) {
  switch (found_by) {
    case FoundBy::kLibraryPath:
      return "LD_LIBRARY_PATH";
    case FoundBy::kPreload:
      return "LD_PRELOAD";
    case FoundBy::kSystem:
      return "the system's library path";
    case FoundBy::kProgram:
      break;
  }
  return "the program's own path";
}

std::string version_in(const std::string& configuration) {
  constexpr std::string_view kMark = "TORCH_VERSION=";
  const size_t place = configuration.find(kMark);
  if (place == std::string::npos) return {};
  const auto first = configuration.begin() + static_cast<std::ptrdiff_t>(place + kMark.size());
  return {first, std::find_if(first, configuration.end(),
                              [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '+'; })};
}

FoundBy found_by(const std::filesystem::path& folder, const char* library_path, const char* preload,
                 const std::vector<std::filesystem::path>& searched) {
  const auto count_in = [&](const auto& folders) {
    return std::ranges::count_if(folders, [&](const auto& one) { return is_same_folder(one, folder); });
  };
  const auto preloaded = split(preload, ": ");
  if (std::ranges::any_of(preloaded, [&](const auto& library) {
        return library.filename() == "libtorch_cpu.so" && is_same_folder(library.parent_path(), folder);
      })) {
    return FoundBy::kPreload;
  }
  constexpr std::array<const char*, 6> kDefaults{"/lib",       "/usr/lib",       "/lib64",
                                                 "/usr/lib64", "/usr/local/lib", "/lib/x86_64-linux-gnu"};
  if (count_in(kDefaults) > 0) return FoundBy::kSystem;
  // The program's own path comes before LD_LIBRARY_PATH (cmake/LibTorch.cmake); the loader lists both.
  const auto in_library_path = count_in(split(library_path, ":;"));
  if (count_in(searched) > in_library_path) return FoundBy::kProgram;
  return in_library_path > 0 ? FoundBy::kLibraryPath : FoundBy::kSystem;
}

LibTorch libtorch() {
  LibTorch found{.compiled_for = TORCH_VERSION,
                 .loaded = version_in(at::show_config()),
                 .cpu_library = loaded_library("libtorch_cpu.so"),
                 .core_library = loaded_library("libc10.so")};
  if (found.cpu_library.empty()) return found;
  const auto folder = found.cpu_library.parent_path();
  const auto cuda = folder / "libtorch_cuda.so";
  std::error_code unknown;
  if (std::filesystem::exists(cuda, unknown)) found.cuda_library = cuda;
  found.found_by = found_by(folder, std::getenv("LD_LIBRARY_PATH"), std::getenv("LD_PRELOAD"), searched_folders());
  return found;
}

}  // namespace vlmtrain::memory
