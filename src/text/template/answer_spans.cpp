#include "text/template/answer_spans.h"

#include <algorithm>
#include <string>

#include "text/unicode/unicode_classes.h"

namespace vlmtrain::text {
namespace {

/// Number of bytes next to an omitted part that must match to locate it in the answer. Fewer bytes
/// would match by chance. Not tuned.
constexpr size_t kMinMatchingContextBytes = 4;

/// A finder of one answer in a rendered text.
class AnswerSpanFinder {
 public:
  AnswerSpanFinder(const jinja::RenderedText& rendering, std::string_view answer_text, const TemplateTraits& traits,
                   const TemplateSettings& settings)
      : rendering_(rendering), text_(rendering.text), answer_text_(answer_text), traits_(traits), settings_(settings) {}

  AnswerSpans find_spans(int turn) const {
    const std::vector<TextSpan> turn_spans = find_origin_spans(rendering_, turn);
    AnswerSpans answer{.spans = merge_spans(turn_spans)};
    if (answer.spans.empty()) return {.spans = {}, .is_complete = count_visible_bytes(answer_text_) == 0};
    size_t num_visible_bytes = 0;
    for (const TextSpan& turn_span : turn_spans) num_visible_bytes += count_visible_bytes(get_span_text(turn_span));
    if (num_visible_bytes >= count_visible_bytes(answer_text_)) return answer;
    const std::string visible_answer_chars = remove_white_space(answer_text_);
    answer.spans.front().begin = find_extended_answer_begin(
        visible_answer_chars, remove_white_space(get_span_text(turn_spans.front())), turn_spans.front().begin);
    answer.spans.back().end = find_extended_answer_end(
        visible_answer_chars, remove_white_space(get_span_text(turn_spans.back())), turn_spans.back().end);
    num_visible_bytes = 0;
    for (const TextSpan& span : answer.spans) num_visible_bytes += count_visible_bytes(get_span_text(span));
    answer.is_complete = num_visible_bytes >= visible_answer_chars.size();
    return answer;
  }

 private:
  std::string_view get_span_text(const TextSpan& span) const { return text_.substr(span.begin, span.end - span.begin); }

  /// Merges adjacent spans if only the template wrote the text between them.
  std::vector<TextSpan> merge_spans(const std::vector<TextSpan>& turn_spans) const {
    std::vector<TextSpan> spans;
    for (const TextSpan& turn_span : turn_spans) {
      if (!spans.empty() && is_answer_gap({spans.back().end, turn_span.begin})) {
        spans.back().end = turn_span.end;
      } else {
        spans.push_back(turn_span);
      }
    }
    return spans;
  }

  /// Returns whether the gap between two parts of an answer is template text without media.
  bool is_answer_gap(const TextSpan& gap_span) const {
    const auto contains_token = [&](const std::string& token) {
      return !token.empty() && get_span_text(gap_span).find(token) != std::string_view::npos;
    };
    return find_next_turn_text_begin(gap_span.begin) >= gap_span.end && !contains_token(settings_.image_markup.token) &&
           !contains_token(settings_.video_markup.token);
  }

  /// Returns the begin of the first turn text that ends after `offset`, but at least `offset`.
  /// Returns the end of the text if there is no such turn text.
  size_t find_next_turn_text_begin(size_t offset) const {
    const auto next_origin_span = std::ranges::find_if(
        rendering_.origin_spans,
        [offset](const jinja::OriginSpan& origin_span) { return !origin_span.empty() && origin_span.end > offset; });
    return next_origin_span == rendering_.origin_spans.end() ? text_.size() : std::max(next_origin_span->begin, offset);
  }

  /// Returns the end of the last turn text before `offset`, or 0 if there is none.
  size_t find_previous_turn_text_end(size_t offset) const {
    size_t end = 0;
    for (const jinja::OriginSpan& origin_span : rendering_.origin_spans) {
      if (!origin_span.empty() && origin_span.end <= offset) end = origin_span.end;
    }
    return end;
  }

  /// Extends an answer to the left over template text that equals its omitted beginning.
  /// `visible_answer_chars` are the visible bytes of the whole answer; `first_visible_chars`, the
  /// visible bytes of its first part, begin at `offset`. Returns the new begin.
  size_t find_extended_answer_begin(std::string_view visible_answer_chars, std::string_view first_visible_chars,
                                    size_t offset) const {
    size_t search_begin = find_previous_turn_text_end(offset);
    const size_t generation_prompt_pos =
        traits_.generation_prompt.empty()
            ? std::string_view::npos
            : text_.substr(search_begin, offset - search_begin).rfind(traits_.generation_prompt);
    if (generation_prompt_pos != std::string_view::npos)
      search_begin += generation_prompt_pos + traits_.generation_prompt.size();
    const std::string visible_template_chars = remove_white_space(text_.substr(search_begin, offset - search_begin));
    first_visible_chars = first_visible_chars.substr(0, kMinMatchingContextBytes);
    for (size_t num_bytes = std::min(visible_template_chars.size(), visible_answer_chars.size()); num_bytes > 0;
         --num_bytes) {
      if (!visible_template_chars.ends_with(visible_answer_chars.substr(0, num_bytes)) ||
          !visible_answer_chars.substr(num_bytes).starts_with(first_visible_chars))
        continue;
      while (num_bytes > 0) num_bytes -= is_visible(text_[--offset]) ? 1 : 0;
      return offset;
    }
    return offset;
  }

  /// Extends an answer to the right like find_extended_answer_begin(). `last_visible_chars`, the
  /// visible bytes of its last part, end at `offset`. Returns the new end.
  size_t find_extended_answer_end(std::string_view visible_answer_chars, std::string_view last_visible_chars,
                                  size_t offset) const {
    std::string_view following_text = text_.substr(offset, find_next_turn_text_begin(offset) - offset);
    following_text = following_text.substr(0, following_text.find(traits_.end_of_turn_token));
    const std::string visible_template_chars = remove_white_space(following_text);
    last_visible_chars = last_visible_chars.substr(last_visible_chars.size() -
                                                   std::min(last_visible_chars.size(), kMinMatchingContextBytes));
    for (size_t num_bytes = std::min(visible_template_chars.size(), visible_answer_chars.size()); num_bytes > 0;
         --num_bytes) {
      const size_t answer_suffix_begin = visible_answer_chars.size() - num_bytes;
      if (!visible_template_chars.starts_with(visible_answer_chars.substr(answer_suffix_begin)) ||
          !visible_answer_chars.substr(0, answer_suffix_begin).ends_with(last_visible_chars))
        continue;
      while (num_bytes > 0) num_bytes -= is_visible(text_[offset++]) ? 1 : 0;
      return offset;
    }
    return offset;
  }

  const jinja::RenderedText& rendering_;
  std::string_view text_;
  std::string_view answer_text_;
  const TemplateTraits& traits_;
  const TemplateSettings& settings_;
};

}  // namespace

AnswerSpans find_answer_spans(const jinja::RenderedText& rendering, int turn, std::string_view answer_text,
                              const TemplateTraits& traits, const TemplateSettings& settings) {
  return AnswerSpanFinder(rendering, answer_text, traits, settings).find_spans(turn);
}

}  // namespace vlmtrain::text
