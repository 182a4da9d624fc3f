#include "io/row_file_plugin.h"

#include <dlfcn.h>

#include <exception>
#include <string>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

constexpr const char* kPlugin = "libvlmtrain_parquet.so";

struct Plugin {
  OpenRowFile* open = nullptr;
  std::string problem{};  // why it is not there
};

/// Its symbols are its own: LibTorch's libraries and Arrow's do not see each other.
void* loaded(std::string& problem) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& place : {program / kPlugin, program.parent_path() / kPlugin, std::filesystem::path(kPlugin)}) {
    if (place.has_parent_path() && !std::filesystem::exists(place, error)) continue;
    if (void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* const reason = dlerror();
    problem = reason == nullptr ? "unknown" : reason;
  }
  return nullptr;
}

Plugin load_plugin() {
  Plugin plugin;
  void* const library = loaded(plugin.problem);
  if (library == nullptr) return plugin;
  auto* const version = reinterpret_cast<RowFileVersion*>(dlsym(library, kRowFileVersionOf));
  auto* const open = reinterpret_cast<OpenRowFile*>(dlsym(library, kOpenRowFile));
  if (version == nullptr || open == nullptr || version() != kRowFileVersion) {
    plugin.problem = "it was built with another version of this program";
  } else {
    plugin.open = open;
  }
  return plugin;
}

}  // namespace

std::unique_ptr<const RowFile> open_row_file(const std::filesystem::path& file) {
  static const Plugin plugin = load_plugin();
  if (plugin.open == nullptr) {
    throw data_error(
        "{} is Parquet, which {} reads, and that is not there ({}): run scripts/setup.sh, which fetches Arrow, and "
        "build again; or write the data as JSON Lines",
        file.string(), kPlugin, excerpt(plugin.problem));
  }
  try {
    return std::unique_ptr<const RowFile>(plugin.open(file.c_str()));
  } catch (const std::exception& error) {
    throw data_error("{}: not a Parquet file that can be read: {}; fetch or write it again", file.string(),
                     excerpt(error.what(), 300));
  }
}

}  // namespace vlmtrain::io
