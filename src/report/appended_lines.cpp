#include "report/appended_lines.h"

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <string_view>

namespace vlmtrain::report {

std::vector<nlohmann::json> AppendedLines::read() {
  std::vector<nlohmann::json> objects;
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0 || status.st_size <= read_bytes_) return objects;
  std::ifstream file(path_, std::ios::binary);
  file.seekg(read_bytes_);
  std::string text(static_cast<size_t>(status.st_size - read_bytes_), '\0');
  file.read(text.data(), std::ssize(text));
  text.resize(static_cast<size_t>(file.gcount()));
  inode_ = status.st_ino;

  std::string_view rest = text;
  for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    auto json = nlohmann::json::parse(rest.substr(0, end), nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) objects.push_back(std::move(json));
    rest.remove_prefix(end + 1);
  }
  read_bytes_ += std::ssize(text) - std::ssize(rest);
  return objects;
}

bool AppendedLines::was_replaced() const {
  if (inode_ == 0) return false;
  struct stat status {};
  return stat(path_.c_str(), &status) != 0 || status.st_ino != inode_ || status.st_size < read_bytes_;
}

}  // namespace vlmtrain::report
