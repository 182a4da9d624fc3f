#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::text {

/// A text on its way through normalizers and pre-tokenizers, with the way back: `origin[i]` is the offset in the
/// original text that byte i of `bytes` stems from. Never decreasing.
struct AlignedText {
  std::string bytes;
  std::vector<uint32_t> origin;

  /// A part of the original text that begins at `begin` in it.
  static AlignedText of(std::string_view part, uint32_t begin) {
    AlignedText text;
    text.bytes = part;
    text.origin.resize(part.size());
    for (uint32_t i = 0; i < part.size(); ++i) text.origin[i] = begin + i;
    return text;
  }

  void reserve(size_t count) {
    bytes.reserve(count);
    origin.reserve(count);
  }
  /// Appends bytes that all stem from `from`.
  void append(std::string_view more, uint32_t from) {
    bytes.append(more);
    origin.insert(origin.end(), more.size(), from);
  }
  /// Appends bytes [begin, end) of `other` as they are.
  void append(const AlignedText& other, size_t begin, size_t end) {
    bytes.append(other.bytes, begin, end - begin);
    origin.insert(origin.end(), other.origin.begin() + static_cast<std::ptrdiff_t>(begin),
                  other.origin.begin() + static_cast<std::ptrdiff_t>(end));
  }
};

}  // namespace vlmtrain::text
