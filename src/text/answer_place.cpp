#include "text/answer_place.h"

#include <algorithm>
#include <string>

#include "text/visible_characters.h"

namespace vlmtrain::text {
namespace {

/// Characters next to what a template left out by which its place in the answer is known.
constexpr size_t kContext = 4;

class AnswerFinder {
 public:
  AnswerFinder(const jinja::Rendering& rendering, std::string_view words, const TemplateHabits& habits,
               const TemplateSettings& settings)
      : rendering_(rendering), text_(rendering.text), words_(words), habits_(habits), settings_(settings) {}

  AnswerPlace find(int turn) const {
    const std::vector<Span> parts = spans_of(rendering_, turn);
    AnswerPlace place{.spans = joined(parts)};
    if (place.spans.empty()) return {.spans = {}, .is_complete = num_visible(words_) == 0};
    size_t visible = 0;
    for (const Span& part : parts) visible += num_visible(text_of(part));
    if (visible >= num_visible(words_)) return place;
    const std::string whole = visible_characters(words_);
    place.spans.front().begin = begin_of(whole, visible_characters(text_of(parts.front())), parts.front().begin);
    place.spans.back().end = end_of(whole, visible_characters(text_of(parts.back())), parts.back().end);
    visible = 0;
    for (const Span& span : place.spans) visible += num_visible(text_of(span));
    place.is_complete = visible >= whole.size();
    return place;
  }

 private:
  std::string_view text_of(const Span& span) const { return text_.substr(span.begin, span.end - span.begin); }

  std::vector<Span> joined(const std::vector<Span>& parts) const {
    std::vector<Span> spans;
    for (const Span& part : parts) {
      if (!spans.empty() && is_of_the_answer({spans.back().end, part.begin})) {
        spans.back().end = part.end;
      } else {
        spans.push_back(part);
      }
    }
    return spans;
  }

  /// Whether the template itself wrote what stands between two parts, and no medium.
  bool is_of_the_answer(const Span& gap) const {
    const auto holds = [&](const std::string& token) {
      return !token.empty() && text_of(gap).find(token) != std::string_view::npos;
    };
    return next_run(gap.begin) >= gap.end && !holds(settings_.image.token) && !holds(settings_.video.token);
  }

  /// Where the first text of a turn begins that does not end before `place`; the text's end without one.
  size_t next_run(size_t place) const {
    const auto next = std::ranges::find_if(rendering_.runs,
                                           [place](const jinja::Run& run) { return !run.empty() && run.end > place; });
    return next == rendering_.runs.end() ? text_.size() : std::max(next->begin, place);
  }

  /// Where the last text of a turn ends before `place`; 0 without one.
  size_t previous_run(size_t place) const {
    size_t end = 0;
    for (const jinja::Run& run : rendering_.runs) {
      if (!run.empty() && run.end <= place) end = run.end;
    }
    return end;
  }

  /// Where the answer `whole` begins, of whose visible characters those of `first` are at `place`.
  size_t begin_of(std::string_view whole, std::string_view first, size_t place) const {
    size_t from = previous_run(place);
    const size_t prompt = habits_.generation_prompt.empty()
                              ? std::string_view::npos
                              : text_.substr(from, place - from).rfind(habits_.generation_prompt);
    if (prompt != std::string_view::npos) from += prompt + habits_.generation_prompt.size();
    const std::string written = visible_characters(text_.substr(from, place - from));
    first = first.substr(0, kContext);
    for (size_t count = std::min(written.size(), whole.size()); count > 0; --count) {
      if (!written.ends_with(whole.substr(0, count)) || !whole.substr(count).starts_with(first)) continue;
      while (count > 0) count -= is_visible(text_[--place]) ? 1 : 0;
      return place;
    }
    return place;
  }

  /// The same of its end: `last` ends at `place`.
  size_t end_of(std::string_view whole, std::string_view last, size_t place) const {
    std::string_view behind = text_.substr(place, next_run(place) - place);
    behind = behind.substr(0, behind.find(habits_.end_of_turn));
    const std::string written = visible_characters(behind);
    last = last.substr(last.size() - std::min(last.size(), kContext));
    for (size_t count = std::min(written.size(), whole.size()); count > 0; --count) {
      const size_t rest = whole.size() - count;
      if (!written.starts_with(whole.substr(rest)) || !whole.substr(0, rest).ends_with(last)) continue;
      while (count > 0) count -= is_visible(text_[place++]) ? 1 : 0;
      return place;
    }
    return place;
  }

  const jinja::Rendering& rendering_;
  std::string_view text_;
  std::string_view words_;
  const TemplateHabits& habits_;
  const TemplateSettings& settings_;
};

}  // namespace

AnswerPlace find_answer(const jinja::Rendering& rendering, int turn, std::string_view words,
                        const TemplateHabits& habits, const TemplateSettings& settings) {
  return AnswerFinder(rendering, words, habits, settings).find(turn);
}

}  // namespace vlmtrain::text
