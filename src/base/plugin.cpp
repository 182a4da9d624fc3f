#include "vlmtrain/base/plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace vlmtrain {

namespace {

void* plugin_library(const char* name, std::string& problem) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& place : {program / name, program.parent_path() / name, std::filesystem::path(name)}) {
    if (place.has_parent_path() && !std::filesystem::exists(place, error)) continue;
    if (void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* const reason = dlerror();
    problem = reason == nullptr ? "unknown" : reason;
  }
  return nullptr;
}

}  // namespace

Plugin load_plugin(const char* library, const char* version_name, int version,
                   const std::vector<const char*>& functions) {
  Plugin plugin;
  void* const loaded = plugin_library(library, plugin.problem);
  if (loaded == nullptr) return plugin;
  auto* const version_of = reinterpret_cast<int (*)()>(dlsym(loaded, version_name));
  bool is_whole = version_of != nullptr && version_of() == version;
  for (const char* const function : functions) {
    plugin.functions.push_back(dlsym(loaded, function));
    is_whole = is_whole && plugin.functions.back() != nullptr;
  }
  if (is_whole) return plugin;
  return {.problem = "it was built with another version of this program"};
}

}  // namespace vlmtrain
