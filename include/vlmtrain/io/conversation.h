#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::io {

enum class Role { kSystem, kUser, kAssistant };

/// Placeholders of an image and a video in the text of a turn, as in LLaVA's data.
inline constexpr std::string_view kImagePlaceholder = "<image>";
inline constexpr std::string_view kVideoPlaceholder = "<video>";

/// One turn of a conversation. The n-th image placeholder of a conversation stands for its n-th image, and the n-th
/// video placeholder for its n-th video. Those in `literal_placeholders` are plain text.
struct Turn {
  Role role;
  std::string text;
  std::vector<size_t> literal_placeholders = {};  ///< byte offsets in `text`, ascending
};

/// A placeholder in the text of a turn.
struct MediaPlaceholder {
  size_t begin;   ///< byte offset of kImagePlaceholder or kVideoPlaceholder, which have the same length
  bool is_video;  ///< else an image or a volume

  bool operator==(const MediaPlaceholder&) const = default;
};

/// Returns the placeholders of `turn` that stand for media, in the order of the text: all except literal ones.
std::vector<MediaPlaceholder> find_placeholders(const Turn& turn);

}  // namespace vlmtrain::io
