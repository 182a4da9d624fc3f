#include "vlmtrain/io/hub_name.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace vlmtrain::io {

bool is_hub_name(const std::string& text) {
  const auto slash = text.find('/');
  if (std::error_code error; std::filesystem::exists(text.substr(0, slash), error)) return false;
  const auto is_allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  };
  return slash != std::string::npos && slash > 0 && slash + 1 < text.size() && text.front() != '.' &&
         std::count(text.begin(), text.end(), '/') == 1 &&
         std::all_of(text.begin(), text.end(), [&](char c) { return c == '/' || is_allowed(c); });
}

}  // namespace vlmtrain::io
