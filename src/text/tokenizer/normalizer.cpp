#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text/tokenizer/pipeline.h"
#include "text/unicode/characters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

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

namespace {

/// A pattern that matches one string.
class LiteralPattern : public Pattern {
 public:
  explicit LiteralPattern(std::string literal) : literal_(std::move(literal)) {}

  void find_all_matches(std::string_view text, std::vector<ByteRange>& matches) const override {
    for (size_t pos = text.find(literal_); pos != std::string_view::npos;
         pos = text.find(literal_, pos + literal_.size())) {
      matches.push_back({pos, pos + literal_.size()});
    }
  }

 private:
  std::string literal_;
};

/// A pattern that matches each numeric character.
class NumericPattern : public Pattern {
 public:
  void find_all_matches(std::string_view text, std::vector<ByteRange>& matches) const override {
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Character utf8_character = read_utf8(text, pos);
      if (is_numeric(utf8_character.code_point)) matches.push_back({pos, pos + utf8_character.num_bytes});
      pos += utf8_character.num_bytes;
    }
  }
};

/// Returns the text of an error code of PCRE2.
std::string get_pcre2_error_message(int error_code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error_code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct RegexCodeDeleter {
  void operator()(pcre2_code* regex) const { pcre2_code_free(regex); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* match_data) const { pcre2_match_data_free(match_data); }
};
using MatchDataPtr = std::unique_ptr<pcre2_match_data, MatchDataDeleter>;

struct MatchContextDeleter {
  void operator()(pcre2_match_context* match_context) const { pcre2_match_context_free(match_context); }
};

/// Returns a match context with limits of time and memory. PCRE2's defaults depend on its build (20
/// GB of heap in the usual one), but hostile expressions must fail on every machine.
pcre2_match_context* get_limited_match_context() {
  static const std::unique_ptr<pcre2_match_context, MatchContextDeleter> match_limits = [] {
    // PCRE2's default; an exponential expression fails within seconds.
    constexpr uint32_t kMaxMatchSteps = 10'000'000;
    constexpr uint32_t kMaxHeapKib = 256 * 1024;  // not tuned
    std::unique_ptr<pcre2_match_context, MatchContextDeleter> match_context(pcre2_match_context_create(nullptr));
    VLMTRAIN_CHECK(match_context != nullptr, "PCRE2 cannot allocate memory");
    pcre2_set_match_limit(match_context.get(), kMaxMatchSteps);
    pcre2_set_depth_limit(match_context.get(), kMaxMatchSteps);
    pcre2_set_heap_limit(match_context.get(), kMaxHeapKib);
    return match_context;
  }();
  return match_limits.get();
}

/// A pattern that matches a regular expression of PCRE2.
class RegexPattern : public Pattern {
 public:
  RegexPattern(const std::string& expression, const JsonNode& node) {
    int error_code = 0;
    PCRE2_SIZE offset = 0;
    regex_code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error_code, &offset, nullptr));
    if (!regex_code_) {
      throw node.error("has the regular expression \"{}\", which does not compile: {} at offset {}",
                       make_excerpt(expression), get_pcre2_error_message(error_code), offset);
    }
    // An error is ignored: without the JIT, matching is slower but gives the same result.
    pcre2_jit_compile(regex_code_.get(), PCRE2_JIT_COMPLETE);
  }

  void find_all_matches(std::string_view text, std::vector<ByteRange>& matches) const override {
    const MatchDataPtr match_data(pcre2_match_data_create_from_pattern(regex_code_.get(), nullptr));
    VLMTRAIN_CHECK(match_data != nullptr, "PCRE2 cannot allocate memory");
    const PCRE2_SIZE* match_offsets = pcre2_get_ovector_pointer(match_data.get());
    for (size_t begin = 0; begin < text.size() && find_match(text, begin, match_data.get());) {
      if (match_offsets[1] > match_offsets[0]) {
        matches.push_back({match_offsets[0], match_offsets[1]});
        begin = match_offsets[1];
      } else if (match_offsets[1] < text.size()) {  // an empty match is skipped
        begin = match_offsets[1] + read_utf8(text, match_offsets[1]).num_bytes;
      } else {
        break;
      }
    }
  }

 private:
  /// Stores the first match at or after byte `begin` in `match_data`. Returns whether there is one.
  bool find_match(std::string_view text, size_t begin, pcre2_match_data* match_data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // Without PCRE2_NO_UTF_CHECK, PCRE2 would validate the whole text for each match, in quadratic
    // time. encode() has already validated it.
    int match_status = pcre2_match(regex_code_.get(), subject, text.size(), begin, PCRE2_NO_UTF_CHECK, match_data,
                                   get_limited_match_context());
    if (match_status == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter uses the heap instead
      match_status = pcre2_match(regex_code_.get(), subject, text.size(), begin, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                                 match_data, get_limited_match_context());
    }
    if (match_status == PCRE2_ERROR_NOMATCH) return false;
    if (match_status < 0) {
      throw data_error("the tokenizer's regular expression failed on a text of {} bytes: {}; shorten or drop this text",
                       text.size(), get_pcre2_error_message(match_status));
    }
    return true;
  }

  std::unique_ptr<pcre2_code, RegexCodeDeleter> regex_code_;
};

}  // namespace

std::unique_ptr<Pattern> make_literal_pattern(std::string literal) {
  VLMTRAIN_CHECK(!literal.empty(), "an empty literal matches everywhere");
  return std::make_unique<LiteralPattern>(std::move(literal));
}

std::unique_ptr<Pattern> make_numeric_pattern() {
  return std::make_unique<NumericPattern>();
}

std::unique_ptr<Pattern> make_regex_pattern(const std::string& expression, const JsonNode& node) {
  return std::make_unique<RegexPattern>(expression, node);
}

std::unique_ptr<Pattern> make_pattern(const JsonNode& node) {
  const JsonNode pattern = node.at("pattern");
  if (pattern.has_key("Regex")) return make_regex_pattern(pattern.get_string("Regex"), pattern);
  if (!pattern.has_key("String")) throw pattern.error("must be {{\"String\": …}} or {{\"Regex\": …}}");
  std::string literal = pattern.get_string("String");
  if (literal.empty()) throw pattern.error("must not be an empty string");
  return make_literal_pattern(std::move(literal));
}

}  // namespace vlmtrain::text
