#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace vlmtrain::fuzz {

/// Returns a folder in memory for the files of an input. It is created once and never removed.
inline const std::filesystem::path& get_scratch_folder() {
  static const std::filesystem::path folder = [] {
    std::string pattern = "/dev/shm/vlmtrain_fuzz_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    return std::filesystem::path(pattern);
  }();
  return folder;
}

/// Writes a file of the scratch folder.
inline void write_file(const std::string& name, std::string_view content) {
  std::ofstream(get_scratch_folder() / name, std::ios::binary) << content;
}

}  // namespace vlmtrain::fuzz
