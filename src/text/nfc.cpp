#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/unicode/utf8.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {
namespace {

constexpr char32_t kFirstCombining = 0x300;  // below it nothing composes with, or moves past, what stands before it
constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr utf8proc_option_t kDecompose = UTF8PROC_DECOMPOSE;
constexpr utf8proc_option_t kCompose = UTF8PROC_COMPOSE;

using CodePointList = std::vector<utf8proc_int32_t>;

CodePointList decompose(std::string_view chunk) {
  CodePointList out(chunk.size() * 4);  // no character decomposes into more than four
  const auto count = utf8proc_decompose(reinterpret_cast<const utf8proc_uint8_t*>(chunk.data()),
                                        static_cast<utf8proc_ssize_t>(chunk.size()), out.data(),
                                        static_cast<utf8proc_ssize_t>(out.size()), kDecompose);
  VLMTRAIN_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(out.size()), "utf8proc gave {}", count);
  out.resize(static_cast<size_t>(count));
  return out;
}

CodePointList decompose(char32_t code_point) {
  std::string bytes;
  append_utf8(bytes, code_point);
  return decompose(bytes);
}

/// The starters that compose with a character before them (NFC_Quick_Check=Maybe, combining class 0), Hangul apart:
/// those that are second in a canonical composition.
std::vector<utf8proc_int32_t> find_composing_starters() {
  std::vector<utf8proc_int32_t> starters;
  for (char32_t code_point = kFirstCombining; code_point <= kLastCodePoint; ++code_point) {
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
    const bool is_decomposable = property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0;
    if (!is_decomposable || property->comp_exclusion) continue;
    const CodePointList decomposition = decompose(code_point);
    if (decomposition.size() > 1 && utf8proc_get_property(decomposition.back())->combining_class == 0)
      starters.push_back(decomposition.back());
  }
  std::sort(starters.begin(), starters.end());
  starters.erase(std::unique(starters.begin(), starters.end()), starters.end());
  return starters;
}

/// Whether the normal form of what stands before `code_point` does not depend on `code_point` and what follows, nor the
/// other way round.
bool starts_chunk(char32_t code_point) {
  static const std::vector<utf8proc_int32_t> composing_starters = find_composing_starters();
  if (code_point < kFirstCombining) return true;
  const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
  if (property->combining_class != 0) return false;
  const bool is_hangul_vowel_or_tail = code_point >= 0x1160 && code_point <= 0x11FF;
  if (is_hangul_vowel_or_tail) return false;
  const bool is_decomposable = property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0;
  const utf8proc_int32_t first =
      is_decomposable ? decompose(code_point).front() : static_cast<utf8proc_int32_t>(code_point);
  return utf8proc_get_property(first)->combining_class == 0 &&
         !std::binary_search(composing_starters.begin(), composing_starters.end(), first);
}

std::string compose(std::string_view chunk) {
  CodePointList code_points = decompose(chunk);
  const auto count =
      utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kCompose);
  VLMTRAIN_CHECK(count >= 0, "utf8proc gave {}", count);
  std::string out;
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(out, static_cast<char32_t>(code_points[static_cast<size_t>(i)]));
  return out;
}

size_t find_chunk_end(std::string_view text, size_t begin) {
  size_t end = begin + read_utf8(text, begin).bytes;
  while (end < text.size()) {
    const Utf8Character utf8 = read_utf8(text, end);
    if (starts_chunk(utf8.code_point)) break;
    end += utf8.bytes;
  }
  return end;
}

}  // namespace

AlignedText to_nfc(const AlignedText& text) {
  AlignedText out;
  out.reserve(text.bytes.size());
  for (size_t begin = 0; begin < text.bytes.size();) {
    const size_t end = find_chunk_end(text.bytes, begin);
    const std::string_view chunk = std::string_view(text.bytes).substr(begin, end - begin);
    const bool is_single_latin = chunk.size() <= 2 && read_utf8(chunk, 0).bytes == chunk.size() &&
                                 read_utf8(chunk, 0).code_point < kFirstCombining;
    if (is_single_latin) {
      out.append(text, begin, end);
    } else if (const std::string composed_chunk = compose(chunk); composed_chunk == chunk) {
      out.append(text, begin, end);
    } else {
      out.append(composed_chunk, text.original_offsets[begin]);
    }
    begin = end;
  }
  return out;
}

}  // namespace vlmtrain::text
