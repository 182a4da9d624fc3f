#include "vlmtrain/base/file_kind.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <system_error>

namespace vlmtrain {

std::string_view describe_non_regular_file(const std::filesystem::path& path) {
  using std::filesystem::file_type;
  std::error_code error;
  switch (std::filesystem::status(path, error).type()) {
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

std::string to_lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

bool has_image_extension(const std::filesystem::path& file) {
  constexpr std::array<std::string_view, 8> kExtensions{".jpg",   ".jpeg", ".jpe", ".jfif",
                                                        ".pjpeg", ".pjp",  ".png", ".webp"};
  return std::ranges::find(kExtensions, to_lower(file.extension().string())) != kExtensions.end();
}

bool is_hidden(const std::filesystem::path& file) {
  return file.filename().native().starts_with('.');
}

bool has_nifti_extension(const std::filesystem::path& file) {
  const std::string name = to_lower(file.filename().string());
  return name.ends_with(".nii") || name.ends_with(".nii.gz");
}

}  // namespace vlmtrain
