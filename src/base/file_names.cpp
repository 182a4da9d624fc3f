#include "vlmtrain/base/file_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <compare>
#include <string>
#include <system_error>

namespace vlmtrain {

namespace {

std::string to_lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

constexpr std::string_view kDigits = "0123456789";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Removes the leading digits of `text` and returns them without leading zeros.
std::string_view consume_digits(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of(kDigits), text.size());
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

/// Returns equal for names that differ only in leading zeros. Compares numbers without conversion,
/// because they may exceed 64 bits: of two without leading zeros, the longer one is larger.
std::strong_ordering compare_in_natural_order(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view a_digits = consume_digits(a);
      const std::string_view b_digits = consume_digits(b);
      if (a_digits.size() != b_digits.size()) return a_digits.size() <=> b_digits.size();
      if (a_digits != b_digits) return a_digits <=> b_digits;
    } else if (a.front() != b.front()) {
      return static_cast<unsigned char>(a.front()) <=> static_cast<unsigned char>(b.front());
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() <=> b.size();
}

}  // namespace

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

bool has_image_extension(const std::filesystem::path& file) {
  constexpr auto kImageExtensions =
      std::to_array<std::string_view>({".jpg", ".jpeg", ".jpe", ".jfif", ".pjpeg", ".pjp", ".png", ".webp", ".tif",
                                       ".tiff", ".heic", ".heif", ".hif", ".avif"});
  return std::ranges::find(kImageExtensions, to_lower(file.extension().string())) != kImageExtensions.end();
}

bool is_hidden_file(const std::filesystem::path& file) {
  return file.filename().native().starts_with('.');
}

bool has_nifti_extension(const std::filesystem::path& file) {
  const std::string name = to_lower(file.filename().string());
  return name.ends_with(".nii") || name.ends_with(".nii.gz");
}

bool precedes_in_natural_order(std::string_view a, std::string_view b) {
  const std::weak_ordering order = compare_in_natural_order(a, b);
  return std::is_eq(order) ? a < b : std::is_lt(order);
}

}  // namespace vlmtrain
