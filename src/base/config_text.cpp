#include "base/config_text.h"

#include <fstream>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"

namespace vlmtrain {

namespace {

constexpr size_t kMostBytes = size_t{16} << 20;

bool is_own_descriptor(const std::filesystem::path& path) {
  const std::string name = path.string();
  return name == "/dev/stdin" || name.starts_with("/dev/fd/") || name.starts_with("/proc/self/fd/");
}

void refuse_other_kinds(const std::filesystem::path& path) {
  const std::string_view kind = kind_if_no_file(path);
  if (kind.empty() || (is_own_descriptor(path) && kind != "a folder")) return;
  throw usage_error("{}: is {}; give an existing file to --config, or /dev/stdin", path.string(), kind);
}

/// At most `bytes` of it: a pipe may have no end.
std::string start_of(std::istream& file, size_t bytes) {
  std::string text;
  constexpr size_t kPiece = size_t{1} << 16;
  while (file && text.size() < bytes) {
    const size_t size = text.size();
    text.resize(size + kPiece);
    file.read(text.data() + size, kPiece);
    text.resize(size + static_cast<size_t>(file.gcount()));
  }
  return text;
}

}  // namespace

std::string read_config_text(const std::filesystem::path& path) {
  refuse_other_kinds(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw usage_error("{}: cannot be read; give an existing file to --config", path.string());
  std::string text = start_of(file, kMostBytes + 1);
  if (file.bad()) throw usage_error("{}: cannot be read to its end; check the disk or network", path.string());
  if (text.size() > kMostBytes) {
    throw usage_error("{}: is longer than {} bytes; give a configuration to --config", path.string(), kMostBytes);
  }
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.erase(0, kMark.size());
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw usage_error("{0}: is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8 {0}", path.string());
  }
  return text;
}

}  // namespace vlmtrain
