#include "text/pattern.h"

#include "text/utf8.h"
#include "vlmtrain/base/printable.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace vlmtrain::text {
namespace {

class LiteralPattern : public Pattern {
 public:
  explicit LiteralPattern(std::string literal) : literal_(std::move(literal)) {}

  void find_all(std::string_view text, std::vector<Range>& matches) const override {
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      matches.push_back({at, at + literal_.size()});
    }
  }

 private:
  std::string literal_;
};

class NumericPattern : public Pattern {
 public:
  void find_all(std::string_view text, std::vector<Range>& matches) const override {
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = read_utf8(text, at);
      if (is_numeric(step.code_point)) matches.push_back({at, at + step.bytes});
      at += step.bytes;
    }
  }
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, MatchDataFree>;

struct MatchContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

/// PCRE2's own limit of the heap is 20 GB, and a build of it may have others: what a checkpoint's expression
/// may use is the same everywhere.
pcre2_match_context* match_limits() {
  static const std::unique_ptr<pcre2_match_context, MatchContextFree> limits = [] {
    constexpr uint32_t kMostSteps = 10'000'000;
    constexpr uint32_t kMostHeapKib = 256 * 1024;
    std::unique_ptr<pcre2_match_context, MatchContextFree> context(pcre2_match_context_create(nullptr));
    VLMTRAIN_CHECK(context != nullptr, "no memory for a match");
    pcre2_set_match_limit(context.get(), kMostSteps);
    pcre2_set_depth_limit(context.get(), kMostSteps);
    pcre2_set_heap_limit(context.get(), kMostHeapKib);
    return context;
  }();
  return limits.get();
}

class RegexPattern : public Pattern {
 public:
  RegexPattern(const std::string& expression, const JsonNode& node) {
    int code = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &offset, nullptr));
    if (!code_) {
      throw node.error("has the regular expression \"{}\", which does not compile: {} at offset {}",
                       excerpt(expression), pcre2_message(code), offset);
    }
    // Without the JIT, matching is slower and the same.
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
  }

  void find_all(std::string_view text, std::vector<Range>& matches) const override {
    const MatchData data(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    VLMTRAIN_CHECK(data != nullptr, "no memory for a match");
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    for (size_t from = 0; from < text.size() && match(text, from, data.get());) {
      if (ends[1] > ends[0]) {
        matches.push_back({ends[0], ends[1]});
        from = ends[1];
      } else if (ends[1] < text.size()) {
        from = ends[1] + read_utf8(text, ends[1]).bytes;
      } else {
        break;
      }
    }
  }

 private:
  bool match(std::string_view text, size_t from, pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // The text was validated once; the check of each match would start at its beginning.
    int result = pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, data, match_limits());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result =
          pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, match_limits());
    }
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {
      throw data_error("The tokenizer's regular expression failed on a text of {} bytes: {}; shorten or drop this text",
                       text.size(), pcre2_message(result));
    }
    return true;
  }

  std::unique_ptr<pcre2_code, CodeFree> code_;
};

}  // namespace

std::unique_ptr<Pattern> literal_pattern(std::string literal) {
  VLMTRAIN_CHECK(!literal.empty(), "an empty literal matches everywhere");
  return std::make_unique<LiteralPattern>(std::move(literal));
}

std::unique_ptr<Pattern> numeric_pattern() {
  return std::make_unique<NumericPattern>();
}

std::unique_ptr<Pattern> regex_pattern(const std::string& expression, const JsonNode& node) {
  return std::make_unique<RegexPattern>(expression, node);
}

std::unique_ptr<Pattern> make_pattern(const JsonNode& node) {
  const JsonNode pattern = node.at("pattern");
  if (pattern.has("Regex")) return regex_pattern(pattern.string_at("Regex"), pattern);
  if (!pattern.has("String")) throw pattern.error("must be {{\"String\": …}} or {{\"Regex\": …}}");
  std::string literal = pattern.string_at("String");
  if (literal.empty()) throw pattern.error("must not be an empty string");
  return literal_pattern(std::move(literal));
}

}  // namespace vlmtrain::text
