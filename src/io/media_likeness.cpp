#include "io/media_likeness.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "io/white_space.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

constexpr std::array kImageEndings =
    std::to_array<std::string_view>({".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff",
                                     ".avif", ".heic", ".heif", ".ppm", ".pgm", ".nii", ".nii.gz", ".dcm"});
constexpr std::array kVideoEndings =
    std::to_array<std::string_view>({".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv"});
constexpr std::array kAudioEndings =
    std::to_array<std::string_view>({".wav", ".mp3", ".flac", ".ogg", ".m4a", ".opus", ".aac"});
constexpr size_t kLongestEnding = 7;

bool ends_like(std::string_view path, std::span<const std::string_view> endings) {
  std::string end(path.substr(path.size() - std::min(path.size(), kLongestEnding)));
  std::ranges::transform(end, end.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return std::ranges::any_of(endings, [&](std::string_view ending) { return end.ends_with(ending); });
}

MediaLikeness likeness_of_path(std::string_view path) {
  constexpr size_t kLongestPath = 4096;
  if (path.starts_with("data:image/")) return MediaLikeness::kImage;
  if (path.starts_with("data:video/")) return MediaLikeness::kVideo;
  const bool is_of_the_web = path.starts_with("http://") || path.starts_with("https://");
  const bool is_text =
      path.size() > kLongestPath || path.find('\n') != std::string_view::npos ||
      (path.find_first_of(kWhiteSpace) != std::string_view::npos && path.find('/') == std::string_view::npos);
  if (is_of_the_web || is_text) return MediaLikeness::kNone;
  if (ends_like(path, kImageEndings)) return MediaLikeness::kImage;
  return ends_like(path, kVideoEndings) ? MediaLikeness::kVideo : MediaLikeness::kNone;
}

bool begins_like_an_image(const json::binary_t& bytes) {
  constexpr size_t kLongestMagic = 12;
  const std::string begin(bytes.begin(),
                          bytes.begin() + static_cast<std::ptrdiff_t>(std::min(bytes.size(), kLongestMagic)));
  return begin.starts_with("\xff\xd8\xff") || begin.starts_with("\x89PNG") || begin.starts_with("GIF8") ||
         begin.starts_with("BM") || (begin.starts_with("RIFF") && begin.ends_with("WEBP"));
}

MediaLikeness likeness_of_object(const json& value) {
  const auto path = value.find("path");
  const auto bytes = value.find("bytes");
  const bool has_path = path != value.end() && path->is_string();
  const bool has_bytes = bytes != value.end() && bytes->is_binary();
  const MediaLikeness by_path = has_path ? likeness_of_path(path->get_ref<const std::string&>()) : MediaLikeness::kNone;
  if (by_path != MediaLikeness::kNone || !has_bytes) return by_path;
  if (has_path && ends_like(path->get_ref<const std::string&>(), kAudioEndings)) return MediaLikeness::kNone;
  // Records are also read without the bytes of their media, which are empty then.
  return path != value.end() || begins_like_an_image(bytes->get_binary()) ? MediaLikeness::kImage
                                                                          : MediaLikeness::kNone;
}

}  // namespace

bool is_named_like_a_video(std::string_view path) {
  return ends_like(path, kVideoEndings);
}

bool is_blank(const json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  if (!value.is_structured()) return value.is_null();
  return std::ranges::all_of(value, is_blank);
}

MediaLikeness find_media_likeness(const json& value) {
  if (value.is_string()) return likeness_of_path(value.get_ref<const std::string&>());
  if (value.is_binary()) {
    return begins_like_an_image(value.get_binary()) ? MediaLikeness::kImage : MediaLikeness::kNone;
  }
  if (value.is_object()) return likeness_of_object(value);
  if (!value.is_array()) return MediaLikeness::kNone;
  const auto first = std::ranges::find_if(value, [](const json& entry) { return !is_blank(entry); });
  return first == value.end() ? MediaLikeness::kNone : find_media_likeness(*first);
}

}  // namespace vlmtrain::io
