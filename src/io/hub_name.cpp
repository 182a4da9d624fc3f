#include "vlmtrain/io/hub_name.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace vlmtrain::io {

bool is_hub_name(const std::string& text) {
  const auto slash = text.find('/');
  if (std::error_code error; std::filesystem::exists(text.substr(0, slash), error)) return false;
  const auto may_stand = [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '-' || letter == '_' || letter == '.';
  };
  return slash != std::string::npos && slash > 0 && slash + 1 < text.size() && text.front() != '.' &&
         std::count(text.begin(), text.end(), '/') == 1 &&
         std::all_of(text.begin(), text.end(), [&](char letter) { return letter == '/' || may_stand(letter); });
}

}  // namespace vlmtrain::io
