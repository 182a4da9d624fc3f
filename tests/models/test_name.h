#pragma once

#include <cctype>
#include <string>

namespace vlmtrain::models {

/// Returns the letters and digits of a preset's name: GoogleTest accepts no other characters.
inline std::string make_test_name(std::string preset) {
  std::erase_if(preset, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return preset;
}

}  // namespace vlmtrain::models
