#include "base/options/config_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain {

namespace {

// Configurations have some kilobytes. The limit stops the reading of a data file or an endless pipe
// that was given by mistake. Chosen without measurement.
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

bool is_descriptor_path(const std::filesystem::path& path) {
  const std::string name = path.string();
  return name == "/dev/stdin" || name.starts_with("/dev/fd/") || name.starts_with("/proc/self/fd/");
}

void reject_special_file(const std::filesystem::path& path) {
  const std::string_view kind = describe_non_regular_file(path);
  if (kind.empty() || (is_descriptor_path(path) && kind != "a folder")) return;
  throw usage_error("{}: is {}; give an existing file to --config, or /dev/stdin", path.string(), kind);
}

/// Reads to the end of the file, or some chunks past `bytes`, because a pipe may never end.
std::string read_prefix(std::istream& file, size_t bytes) {
  std::string text;
  constexpr size_t kChunkBytes = size_t{1} << 16;
  while (file && text.size() < bytes) {
    const size_t size = text.size();
    text.resize(size + kChunkBytes);
    file.read(text.data() + size, kChunkBytes);
    text.resize(size + static_cast<size_t>(file.gcount()));
  }
  return text;
}

}  // namespace

std::string read_config_text(const std::filesystem::path& path) {
  reject_special_file(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw usage_error("{}: cannot be read; give an existing file to --config", path.string());
  std::string text = read_prefix(file, kMaxConfigBytes + 1);
  if (file.bad()) throw usage_error("{}: cannot be read completely; check the disk or network", path.string());
  if (text.size() > kMaxConfigBytes) {
    throw usage_error("{}: is longer than {} bytes; give a configuration to --config", path.string(), kMaxConfigBytes);
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw usage_error("{0}: is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8 {0}", path.string());
  }
  return text;
}

std::string describe_yaml_error(std::string_view text, int line, std::string_view reason) {
  const auto get_line = [&](int line_index) {
    std::string_view remaining_text = text;
    for (int i = 0; i < line_index && !remaining_text.empty(); ++i) {
      remaining_text.remove_prefix(std::min(remaining_text.find('\n'), remaining_text.size() - 1) + 1);
    }
    return remaining_text.substr(0, remaining_text.find('\n'));
  };
  // The parser reports the line where it stopped, which may be the line after the error.
  for (const int candidate : {line, line - 1}) {
    if (candidate < 0) continue;
    const std::string_view content = get_line(candidate);
    if (content.substr(0, content.find_first_not_of(" \t")).find('\t') != std::string_view::npos) {
      return fmt::format("{} is indented with a tab; YAML allows only spaces",
                         candidate == line ? "this line" : "the line above");
    }
  }
  if (reason == "illegal map value" || reason == "end of map not found") {
    return fmt::format(
        "is not YAML ({}): this line and those above it are indented differently, or a value has a colon and needs "
        "quotes",
        reason);
  }
  return fmt::format("is not YAML: {}", make_excerpt(reason));
}

}  // namespace vlmtrain
