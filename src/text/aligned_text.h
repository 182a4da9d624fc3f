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
  std::vector<uint32_t> original_offsets;

  /// A part of the original text that begins at `begin` in it.
  static AlignedText from_original(std::string_view original_part, uint32_t begin) {
    AlignedText text;
    text.bytes = original_part;
    text.original_offsets.resize(original_part.size());
    for (uint32_t i = 0; i < original_part.size(); ++i) text.original_offsets[i] = begin + i;
    return text;
  }

  void reserve(size_t num_bytes) {
    bytes.reserve(num_bytes);
    original_offsets.reserve(num_bytes);
  }
  /// Appends bytes that all stem from `original_offset`.
  void append(std::string_view appended, uint32_t original_offset) {
    bytes.append(appended);
    original_offsets.insert(original_offsets.end(), appended.size(), original_offset);
  }
  /// Appends bytes [begin, end) of `source` as they are.
  void append(const AlignedText& source, size_t begin, size_t end) {
    bytes.append(source.bytes, begin, end - begin);
    original_offsets.insert(original_offsets.end(),
                            source.original_offsets.begin() + static_cast<std::ptrdiff_t>(begin),
                            source.original_offsets.begin() + static_cast<std::ptrdiff_t>(end));
  }
};

}  // namespace vlmtrain::text
