#include "vlmtrain/base/file_kind.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <system_error>

namespace vlmtrain {

std::string_view kind_if_no_file(const std::filesystem::path& path) {
  using std::filesystem::file_type;
  std::error_code unknown;
  switch (std::filesystem::status(path, unknown).type()) {
    case file_type::directory:
      return "a folder";
    case file_type::fifo:
      return "a named pipe";
    case file_type::socket:
      return "a socket";
    case file_type::block:
    case file_type::character:
      return "a device";
    default:
      return {};
  }
}

namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

}  // namespace

bool is_named_like_a_picture(const std::filesystem::path& file) {
  constexpr std::array<std::string_view, 8> kEndings{".jpg",   ".jpeg", ".jpe", ".jfif",
                                                     ".pjpeg", ".pjp",  ".png", ".webp"};
  return std::ranges::find(kEndings, lower(file.extension().string())) != kEndings.end();
}

bool is_hidden(const std::filesystem::path& file) {
  return file.filename().native().starts_with('.');
}

bool is_named_like_a_volume(const std::filesystem::path& file) {
  const std::string name = lower(file.filename().string());
  return name.ends_with(".nii") || name.ends_with(".nii.gz");
}

}  // namespace vlmtrain
