#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {
namespace {

constexpr char32_t kFirstCombining = 0x300;  // below it nothing composes with, or moves past, what stands before it
constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr utf8proc_option_t kDecompose = UTF8PROC_DECOMPOSE;
constexpr utf8proc_option_t kCompose = UTF8PROC_COMPOSE;

using CodePoints = std::vector<utf8proc_int32_t>;

CodePoints decompose(std::string_view chunk) {
  CodePoints out(chunk.size() * 4);  // no character decomposes into more than four
  const auto count = utf8proc_decompose(reinterpret_cast<const utf8proc_uint8_t*>(chunk.data()),
                                        static_cast<utf8proc_ssize_t>(chunk.size()), out.data(),
                                        static_cast<utf8proc_ssize_t>(out.size()), kDecompose);
  VLMTRAIN_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(out.size()), "utf8proc gave {}", count);
  out.resize(static_cast<size_t>(count));
  return out;
}

CodePoints decompose(char32_t code_point) {
  std::string bytes;
  append_utf8(bytes, code_point);
  return decompose(bytes);
}

/// The starters that compose with a character before them (NFC_Quick_Check=Maybe, combining class 0), Hangul apart:
/// those that are second in a canonical composition.
std::vector<utf8proc_int32_t> find_composing_starters() {
  std::vector<utf8proc_int32_t> found;
  for (char32_t c = kFirstCombining; c <= kLastCodePoint; ++c) {
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    const bool decomposes = property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0;
    if (!decomposes || property->comp_exclusion) continue;
    const CodePoints parts = decompose(c);
    if (parts.size() > 1 && utf8proc_get_property(parts.back())->combining_class == 0) found.push_back(parts.back());
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

/// Whether the normal form of what stands before `c` does not depend on `c` and what follows, nor the other way round.
bool starts_chunk(char32_t c) {
  static const std::vector<utf8proc_int32_t> composing = find_composing_starters();
  if (c < kFirstCombining) return true;
  const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  if (property->combining_class != 0) return false;
  const bool hangul_vowel_or_tail = c >= 0x1160 && c <= 0x11FF;
  if (hangul_vowel_or_tail) return false;
  const bool decomposes = property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0;
  const utf8proc_int32_t first = decomposes ? decompose(c).front() : static_cast<utf8proc_int32_t>(c);
  return utf8proc_get_property(first)->combining_class == 0 &&
         !std::binary_search(composing.begin(), composing.end(), first);
}

std::string compose(std::string_view chunk) {
  CodePoints points = decompose(chunk);
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), kCompose);
  VLMTRAIN_CHECK(count >= 0, "utf8proc gave {}", count);
  std::string out;
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(points[static_cast<size_t>(i)]));
  return out;
}

size_t chunk_end(std::string_view text, size_t begin) {
  size_t end = begin + read_utf8(text, begin).bytes;
  while (end < text.size()) {
    const Utf8Step step = read_utf8(text, end);
    if (starts_chunk(step.code_point)) break;
    end += step.bytes;
  }
  return end;
}

}  // namespace

AlignedText to_nfc(const AlignedText& text) {
  AlignedText out;
  out.reserve(text.bytes.size());
  for (size_t begin = 0; begin < text.bytes.size();) {
    const size_t end = chunk_end(text.bytes, begin);
    const std::string_view chunk = std::string_view(text.bytes).substr(begin, end - begin);
    const bool is_single_latin = chunk.size() <= 2 && read_utf8(chunk, 0).bytes == chunk.size() &&
                                 read_utf8(chunk, 0).code_point < kFirstCombining;
    if (is_single_latin) {
      out.append(text, begin, end);
    } else if (const std::string composed = compose(chunk); composed == chunk) {
      out.append(text, begin, end);
    } else {
      out.append(composed, text.origin[begin]);
    }
    begin = end;
  }
  return out;
}

}  // namespace vlmtrain::text
