#include "text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text/tokenizer/pattern.h"
#include "text/unicode/utf8.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {
namespace {

/// The first combining character. Characters below it neither compose with nor reorder before the
/// previous character.
constexpr char32_t kFirstCombiningCharacter = 0x300;
constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr utf8proc_option_t kDecomposeOption = UTF8PROC_DECOMPOSE;
constexpr utf8proc_option_t kComposeOption = UTF8PROC_COMPOSE;

using CodePointList = std::vector<utf8proc_int32_t>;

/// Returns the canonical decomposition of `chunk`.
CodePointList decompose(std::string_view chunk) {
  CodePointList out(chunk.size() * 4);  // no character decomposes into more than 4 code points
  const auto count = utf8proc_decompose(reinterpret_cast<const utf8proc_uint8_t*>(chunk.data()),
                                        static_cast<utf8proc_ssize_t>(chunk.size()), out.data(),
                                        static_cast<utf8proc_ssize_t>(out.size()), kDecomposeOption);
  VLMTRAIN_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(out.size()), "utf8proc returned {}", count);
  out.resize(static_cast<size_t>(count));
  return out;
}

/// Returns the canonical decomposition of one character.
CodePointList decompose(char32_t code_point) {
  std::string bytes;
  append_utf8(bytes, code_point);
  return decompose(bytes);
}

/// Returns, in ascending order, the starters (combining class 0) that compose with a character
/// before them (NFC_Quick_Check=Maybe), except Hangul. They are the second characters of canonical
/// compositions.
std::vector<utf8proc_int32_t> find_composing_starters() {
  std::vector<utf8proc_int32_t> starters;
  for (char32_t code_point = kFirstCombiningCharacter; code_point <= kLastCodePoint; ++code_point) {
    const auto* unicode_properties = utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
    const bool is_decomposable =
        unicode_properties->decomp_seqindex != UINT16_MAX && unicode_properties->decomp_type == 0;
    if (!is_decomposable || unicode_properties->comp_exclusion) continue;
    const CodePointList decomposition = decompose(code_point);
    if (decomposition.size() > 1 && utf8proc_get_property(decomposition.back())->combining_class == 0)
      starters.push_back(decomposition.back());
  }
  std::sort(starters.begin(), starters.end());
  starters.erase(std::unique(starters.begin(), starters.end()), starters.end());
  return starters;
}

/// Returns whether the text before `code_point` and the text that begins with it can be normalized
/// separately.
bool starts_nfc_chunk(char32_t code_point) {
  static const std::vector<utf8proc_int32_t> composing_starters = find_composing_starters();
  if (code_point < kFirstCombiningCharacter) return true;
  const auto* unicode_properties = utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
  if (unicode_properties->combining_class != 0) return false;
  // Vowels and final consonants (Jamo), which compose by formula, not by the table.
  const bool is_hangul_vowel_or_tail = code_point >= 0x1160 && code_point <= 0x11FF;
  if (is_hangul_vowel_or_tail) return false;
  const bool is_decomposable =
      unicode_properties->decomp_seqindex != UINT16_MAX && unicode_properties->decomp_type == 0;
  const utf8proc_int32_t first_code_point =
      is_decomposable ? decompose(code_point).front() : static_cast<utf8proc_int32_t>(code_point);
  return utf8proc_get_property(first_code_point)->combining_class == 0 &&
         !std::binary_search(composing_starters.begin(), composing_starters.end(), first_code_point);
}

/// Returns `chunk` in normalization form C.
std::string normalize_nfc_chunk(std::string_view chunk) {
  CodePointList code_points = decompose(chunk);
  const auto count =
      utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kComposeOption);
  VLMTRAIN_CHECK(count >= 0, "utf8proc returned {}", count);
  std::string out;
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(out, static_cast<char32_t>(code_points[static_cast<size_t>(i)]));
  return out;
}

/// Returns the end of the shortest chunk that begins at `begin` and can be normalized separately.
size_t find_nfc_chunk_end(std::string_view text, size_t begin) {
  size_t end = begin + read_utf8(text, begin).num_bytes;
  while (end < text.size()) {
    const Utf8Character utf8_character = read_utf8(text, end);
    if (starts_nfc_chunk(utf8_character.code_point)) break;
    end += utf8_character.num_bytes;
  }
  return end;
}

/// Returns the text in Unicode normalization form C. All bytes of a chunk that changes get the
/// original offset of its first byte.
AlignedText to_nfc(const AlignedText& text) {
  AlignedText out;
  out.reserve(text.bytes.size());
  for (size_t begin = 0; begin < text.bytes.size();) {
    const size_t end = find_nfc_chunk_end(text.bytes, begin);
    const std::string_view chunk = std::string_view(text.bytes).substr(begin, end - begin);
    // A fast path: such a chunk is already normalized.
    const bool is_single_base_character = chunk.size() <= 2 && read_utf8(chunk, 0).num_bytes == chunk.size() &&
                                          read_utf8(chunk, 0).code_point < kFirstCombiningCharacter;
    const std::string normalized_chunk = is_single_base_character ? std::string() : normalize_nfc_chunk(chunk);
    if (is_single_base_character || normalized_chunk == chunk) {
      out.append(text, begin, end);
    } else {
      out.append(normalized_chunk, text.original_offsets[begin]);
    }
    begin = end;
  }
  return out;
}

/// The normalizer NFC.
class NfcNormalizer : public Normalizer {
 public:
  void normalize(AlignedText& text) const override { text = to_nfc(text); }
};

/// The normalizer Prepend, which inserts a prefix before texts that are not empty.
class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}

  void normalize(AlignedText& text) const override {
    if (text.bytes.empty()) return;
    text.bytes.insert(0, prefix_);
    text.original_offsets.insert(text.original_offsets.begin(), prefix_.size(), text.original_offsets.front());
  }

 private:
  std::string prefix_;
};

/// The normalizer Replace, which replaces the matches of a pattern.
class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void normalize(AlignedText& text) const override {
    std::vector<ByteRange> matches;
    pattern_->find_all_matches(text.bytes, matches);
    AlignedText out;
    out.reserve(text.bytes.size() + matches.size() * content_.size());
    size_t copied_end = 0;
    for (const ByteRange& match : matches) {
      out.append(text, copied_end, match.begin);
      out.append(content_, text.original_offsets[match.begin]);
      copied_end = match.end;
    }
    out.append(text, copied_end, text.bytes.size());
    text = std::move(out);
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

/// The normalizer Sequence, which applies several normalizers in order.
class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> normalizers)
      : normalizers_(std::move(normalizers)) {}

  void normalize(AlignedText& text) const override {
    for (const auto& normalizer : normalizers_) normalizer->normalize(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> normalizers_;
};

std::unique_ptr<Normalizer> make_nfc_normalizer(const JsonNode&) {
  return std::make_unique<NfcNormalizer>();
}

std::unique_ptr<Normalizer> make_prepend_normalizer(const JsonNode& node) {
  return std::make_unique<PrependNormalizer>(node.get_string("prepend"));
}

std::unique_ptr<Normalizer> make_replace_normalizer(const JsonNode& node) {
  return std::make_unique<ReplaceNormalizer>(make_pattern(node), node.get_string("content"));
}

std::unique_ptr<Normalizer> make_normalizer_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  for (const JsonNode& normalizer : node.get_list("normalizers")) normalizers.push_back(make_normalizer(normalizer));
  return std::make_unique<NormalizerSequence>(std::move(normalizers));
}

constexpr std::array<ComponentFactory<Normalizer>, 4> kNormalizerFactories{{
    {"NFC", make_nfc_normalizer},
    {"Prepend", make_prepend_normalizer},
    {"Replace", make_replace_normalizer},
    {"Sequence", make_normalizer_sequence},
}};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node) {
  return make_component<Normalizer>(node, kNormalizerFactories);
}

}  // namespace vlmtrain::text
