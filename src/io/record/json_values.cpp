#include "io/record/json_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/keys/key_rules.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

namespace {

// Extensions of files in practice, whether supported or not.
constexpr std::array kImageExtensions =
    std::to_array<std::string_view>({".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff",
                                     ".avif", ".heic", ".heif", ".ppm", ".pgm", ".nii", ".nii.gz", ".dcm"});
constexpr std::array kVideoExtensions =
    std::to_array<std::string_view>({".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv"});
constexpr std::array kAudioExtensions =
    std::to_array<std::string_view>({".wav", ".mp3", ".flac", ".ogg", ".m4a", ".opus", ".aac"});
constexpr size_t kMaxExtensionLength = 7;  // length of ".nii.gz"

bool has_extension(std::string_view path, std::span<const std::string_view> extensions) {
  std::string suffix(path.substr(path.size() - std::min(path.size(), kMaxExtensionLength)));
  std::ranges::transform(suffix, suffix.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return std::ranges::any_of(extensions, [&](std::string_view extension) { return suffix.ends_with(extension); });
}

/// Returns the kind of media that a text names. A text is not a path if it is too long, has a line break, or has spaces
/// but no folder, as sentences that end with a file name.
MediaType classify_media_path(std::string_view path) {
  constexpr size_t kMaxPathLength = 4096;  // PATH_MAX of Linux
  if (path.starts_with("data:image/")) return MediaType::kImage;
  if (path.starts_with("data:video/")) return MediaType::kVideo;
  const bool is_url = path.starts_with("http://") || path.starts_with("https://");
  const bool is_text =
      path.size() > kMaxPathLength || path.find('\n') != std::string_view::npos ||
      (path.find_first_of(kJsonWhitespace) != std::string_view::npos && path.find('/') == std::string_view::npos);
  if (is_url || is_text) return MediaType::kNone;
  if (has_extension(path, kImageExtensions)) return MediaType::kImage;
  return has_extension(path, kVideoExtensions) ? MediaType::kVideo : MediaType::kNone;
}

std::string_view view_bytes(const RecordJson& value) {
  const RecordJson::binary_t& bytes = value.get_binary();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

MediaType classify_media_object(const RecordJson& value) {
  const auto path = value.find("path");
  const auto bytes = value.find("bytes");
  const bool has_path = path != value.end() && path->is_string();
  const bool has_bytes = bytes != value.end() && bytes->is_binary();
  const MediaType path_media_type =
      has_path ? classify_media_path(path->get_ref<const std::string&>()) : MediaType::kNone;
  if (path_media_type != MediaType::kNone || !has_bytes) return path_media_type;
  if (has_path && has_extension(path->get_ref<const std::string&>(), kAudioExtensions)) return MediaType::kNone;
  // If records are read without the bytes of media, the bytes are empty and have no signature.
  return path != value.end() || has_image_signature(view_bytes(*bytes)) ? MediaType::kImage : MediaType::kNone;
}

/// Appends a value until the text exceeds the length of an excerpt.
void append_value_excerpt(const RecordJson& value, std::string& text) {
  if (text.size() > kMaxExcerptCharacters) return;
  if (value.is_string()) {
    text += to_json_string(RecordJson(make_excerpt(value.get_ref<const std::string&>())));
  } else if (value.is_binary()) {
    text += fmt::format("{} bytes", value.get_binary().size());
  } else if (value.is_structured()) {
    text += value.is_array() ? '[' : '{';
    bool is_first_entry = true;
    for (auto entry = value.begin(); entry != value.end() && text.size() <= kMaxExcerptCharacters; ++entry) {
      if (!std::exchange(is_first_entry, false)) text += ", ";
      if (value.is_object()) text += to_json_string(RecordJson(make_excerpt(entry.key()))) + ": ";
      append_value_excerpt(*entry, text);
    }
    text += value.is_array() ? ']' : '}';
  } else {
    text += value.dump();
  }
}

}  // namespace

std::string make_value_excerpt(const RecordJson& value) {
  std::string text;
  append_value_excerpt(value, text);
  return make_excerpt(text);
}

bool has_image_signature(std::string_view bytes) {
  using namespace std::string_view_literals;
  constexpr std::array kSignatures = {"\xff\xd8\xff"sv, "\x89PNG"sv, "GIF8"sv, "BM"sv, "II*\0"sv, "MM\0*"sv};
  constexpr std::array kHeifBrands = {"heic"sv, "heix"sv, "mif1"sv, "msf1"sv, "avif"sv, "avis"sv};
  // "RIFF" and "ftyp" are followed or preceded by four bytes of length, then the type.
  const std::string_view type = bytes.substr(std::min<size_t>(bytes.size(), 8)).substr(0, 4);
  if (bytes.starts_with("RIFF")) return type == "WEBP";
  if (bytes.substr(std::min<size_t>(bytes.size(), 4)).starts_with("ftyp"))
    return std::ranges::find(kHeifBrands, type) != kHeifBrands.end();
  return std::ranges::any_of(kSignatures, [&](std::string_view signature) { return bytes.starts_with(signature); });
}

bool has_video_extension(std::string_view path) {
  return has_extension(path, kVideoExtensions);
}

std::optional<bool> parse_switch(const RecordJson& value) {
  const auto matches_any = [&](std::initializer_list<std::string_view> texts) {
    return value.is_string() && std::ranges::find(texts, value.get_ref<const std::string&>()) != texts.end();
  };
  if (value.is_boolean()) return value.get<bool>();
  if ((value.is_number() && value.get<double>() == 1.0) || matches_any({"true", "True", "1", "1.0"})) return true;
  if ((value.is_number() && value.get<double>() == 0.0) || matches_any({"false", "False", "0", "0.0"})) return false;
  return std::nullopt;
}

bool is_blank(const RecordJson& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  if (!value.is_structured()) return value.is_null();
  return std::ranges::all_of(value, is_blank);
}

MediaType classify_media(const RecordJson& value) {
  if (value.is_string()) return classify_media_path(value.get_ref<const std::string&>());
  if (value.is_binary()) {
    return has_image_signature(view_bytes(value)) ? MediaType::kImage : MediaType::kNone;
  }
  if (value.is_object()) return classify_media_object(value);
  if (!value.is_array()) return MediaType::kNone;
  const auto first = std::ranges::find_if(value, [](const RecordJson& entry) { return !is_blank(entry); });
  return first == value.end() ? MediaType::kNone : classify_media(*first);
}

/// The smallest weight above 0. Squares of its gradients stay within fp32's range.
constexpr double kMinLossWeight = 1e-6;

std::optional<double> parse_fraction(const RecordJson& value) {
  double fraction = -1;
  if (value.is_number()) fraction = value.get<double>();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const char* const end = text.data() + text.size();
    const auto [parsed_end, error] = std::from_chars(text.data(), end, fraction);
    if (error != std::errc() || parsed_end != end) return std::nullopt;
  }
  const bool is_fraction = fraction >= 0 && fraction <= 1;  // false for NaN
  return is_fraction ? std::optional(fraction) : std::nullopt;
}

float parse_loss_weight(const RecordJson& turn, size_t turn_number) {
  bool is_learned = true;
  std::optional<std::pair<std::string, double>> fraction;  // key and value
  for (auto entry = turn.begin(); entry != turn.end(); ++entry) {
    const KeyRule rule = get_key_rule(KeyScope::kTurn, entry.key());
    if ((rule != KeyRule::kLossMask && rule != KeyRule::kInverseLossMask) || is_blank(*entry)) continue;
    if (const auto value = parse_switch(*entry)) {
      is_learned = is_learned && *value == (rule == KeyRule::kLossMask);
      continue;
    }
    const auto value = rule == KeyRule::kLossMask ? parse_fraction(*entry) : std::nullopt;
    if (!value) {
      throw data_error(
          "turn {} has \"{}\": {}, which is not {}; write \"loss\": true, false or a number from 0 to 1 into the "
          "answer, or set {}=[{}]",
          turn_number, make_excerpt(entry.key()), make_value_excerpt(*entry),
          rule == KeyRule::kLossMask ? "true, false or a number from 0 to 1" : "true (1) or false (0)",
          keys::data::kIgnoreKeys, make_excerpt(entry.key()));
    }
    if (*value > 0 && *value < kMinLossWeight) {
      throw data_error("turn {} has \"{}\": {}, less than {}; write 0, or a larger weight", turn_number,
                       make_excerpt(entry.key()), *value, kMinLossWeight);
    }
    if (fraction && fraction->second != *value) {
      throw data_error("turn {} has \"{}\": {} and \"{}\": {}, which differ; keep one, or set {}=[{}]", turn_number,
                       fraction->first, fraction->second, entry.key(), *value, keys::data::kIgnoreKeys, entry.key());
    }
    fraction = {entry.key(), *value};
  }
  return is_learned ? static_cast<float>(fraction ? fraction->second : 1.0) : 0.0F;
}

}  // namespace vlmtrain::io
