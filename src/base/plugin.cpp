#include "vlmtrain/base/plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "vlmtrain/base/program.h"

namespace vlmtrain {

namespace {

/// Returns null and sets `problem` if no candidate can be loaded.
void* open_plugin_library(const char* name, std::string& problem) {
  std::error_code error;
  const auto program_folder = get_program_folder();
  for (const auto& candidate :
       {program_folder / name, program_folder.parent_path() / name, std::filesystem::path(name)}) {
    if (candidate.has_parent_path() && !std::filesystem::exists(candidate, error)) continue;
    if (void* const library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* const reason = dlerror();
    problem = reason == nullptr ? "unknown" : reason;
  }
  return nullptr;
}

}  // namespace

Plugin load_plugin(const char* library, const char* version_function, int version,
                   const std::vector<const char*>& function_names) {
  Plugin plugin;
  void* const library_handle = open_plugin_library(library, plugin.problem);
  if (library_handle == nullptr) return plugin;
  auto* const get_version = reinterpret_cast<int (*)()>(dlsym(library_handle, version_function));
  bool is_complete = get_version != nullptr && get_version() == version;
  for (const char* const function : function_names) {
    plugin.functions.push_back(dlsym(library_handle, function));
    is_complete = is_complete && plugin.functions.back() != nullptr;
  }
  if (is_complete) return plugin;
  return {.problem = "it was built for another version of this program"};
}

}  // namespace vlmtrain
