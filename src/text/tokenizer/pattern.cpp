#include "text/tokenizer/pattern.h"

#include "text/unicode/unicode_classes.h"
#include "text/unicode/utf8.h"
#include "vlmtrain/base/text_format.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace vlmtrain::text {
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
      throw data_error("The tokenizer's regular expression failed on a text of {} bytes: {}; shorten or drop this text",
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
