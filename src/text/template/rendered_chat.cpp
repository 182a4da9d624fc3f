#include "text/template/rendered_chat.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "text/unicode/characters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::text {
namespace {

/// The bytes of an answer with their weight in the loss.
struct WeightedSpan {
  TextSpan span;
  float weight;
};

/// A builder of a RenderedChat. Finds the answers and media in a rendered text.
class RenderedChatBuilder {
 public:
  RenderedChatBuilder(jinja::RenderedText rendering, const TemplateTraits& traits, const TemplateSettings& settings,
                      const TurnsRenderer& render_turns)
      : rendering_(std::move(rendering)), traits_(traits), settings_(settings), render_turns_(render_turns) {}

  /// Returns the chat. Call it once, because it moves the text out. `ends_with_answer`: the last
  /// turn is complete, so that a missing end of turn is inserted.
  RenderedChat build_chat(std::span<const Turn> turns, bool ends_with_answer,
                          std::span<const io::TemplateValue> variables) {
    RenderedChat chat;
    std::vector<WeightedSpan> answers;  // also those with weight 0
    const std::vector<size_t> num_visible_bytes_by_turn = count_visible_bytes_by_turn(turns.size());
    bool has_answer = false, has_end_of_turn = false;
    for (size_t i = 0; i < turns.size(); ++i) {
      const Turn& turn = turns[i];
      const std::string turn_text = remove_placeholders(turn);
      if (contains_end_of_turn(turn, turn_text)) {
        add_notice("text that contains the end-of-turn token, which ends the turn there", turn, chat.notices);
      }
      if (turn.role != Role::kAssistant) {
        if (num_visible_bytes_by_turn[i] < count_visible_bytes(turn_text)) add_omission_notice(turn, chat.notices);
        continue;
      }
      const bool is_last_answer = ends_with_answer && i + 1 == turns.size();
      if (!io::has_answer_fields(turn)) reject_repeated_answer(static_cast<int>(i), turn.text);
      std::vector<TextSpan> spans = io::has_answer_fields(turn)
                                        ? find_generated_span(turns, i, is_last_answer, chat.notices)
                                        : std::vector<TextSpan>();
      if (spans.empty()) {
        AnswerSpans answer = find_answer_spans(rendering_, static_cast<int>(i), turn_text, traits_, settings_);
        if (!answer.is_complete) add_omission_notice(turn, chat.notices);
        if (answer.spans.empty()) continue;  // the template omits this turn
        const auto begin = find_answer_begin(answer.spans.front().begin, i, is_last_answer, variables, chat.notices);
        spans = extend_answer_spans(std::move(answer.spans), begin, is_last_answer);
      }
      has_answer = true;
      has_end_of_turn = has_end_of_turn || ends_with_end_of_turn(spans.back());
      for (const TextSpan& span : spans) answers.push_back({span, turn.loss_weight});
    }
    if (has_answer && !has_end_of_turn) {
      chat.notices.push_back({"answers without an end-of-turn token", make_excerpt(turns.back().text)});
    }
    chat.media = find_media_spans();
    set_answers(answers, chat);
    if (const auto notice = find_omitted_tools(rendering_.text, variables)) chat.notices.push_back(*notice);
    chat.text = std::move(rendering_.text);
    return chat;
  }

 private:
  /// Returns the text of `turn` without placeholders.
  static std::string remove_placeholders(const Turn& turn) {
    std::string turn_text;
    for (const TurnPiece& piece : split_at_placeholders(turn)) turn_text += piece.text;
    return turn_text;
  }

  /// Adds a notice that the template omits text of `turn`.
  static void add_omission_notice(const Turn& turn, std::vector<io::Notice>& notices) {
    const char* const kind = turn.role == Role::kAssistant ? "text of an answer that the chat template omits"
                             : turn.role == Role::kSystem  ? "system text that the chat template omits"
                             : turn.role == Role::kTool    ? "output of a tool that the chat template omits"
                                                           : "text of a question that the chat template omits";
    add_notice(kind, turn, notices);
  }

  static void add_notice(const char* kind, const Turn& turn, std::vector<io::Notice>& notices) {
    if (std::ranges::count(notices, kind, &io::Notice::kind) == 0) notices.push_back({kind, make_excerpt(turn.text)});
  }

  /// Returns whether the text of a turn or a text in its fields contains the end-of-turn token.
  bool contains_end_of_turn(const Turn& turn, const std::string& turn_text) const {
    const auto contains_token = [&](const std::string& text) {
      return !traits_.end_of_turn_token.empty() && text.find(traits_.end_of_turn_token) != std::string::npos;
    };
    return contains_token(turn_text) ||
           std::ranges::any_of(turn.fields, [&](const io::TemplateValue& field) { return contains_token(field.json); });
  }

  /// Returns the span of find_generated_answer(), with an end of turn. Returns none for an answer
  /// whose tool calls and reasoning the template omits.
  std::vector<TextSpan> find_generated_span(std::span<const Turn> turns, size_t i, bool is_last_answer,
                                            std::vector<io::Notice>& notices) {
    GeneratedAnswer answer = find_generated_answer(rendering_, turns[i], static_cast<int>(i), render_turns_,
                                                   is_last_answer, traits_, settings_);
    for (const char* kind : answer.notice_kinds) add_notice(kind, turns[i], notices);
    if (answer.span && !answer.has_end_of_turn) {
      insert_end_of_turn(answer.span->end);
      answer.span->end += traits_.end_of_turn_token.size();
    }
    return answer.span ? std::vector<TextSpan>{*answer.span} : std::vector<TextSpan>();
  }

  /// Returns, for each turn, the number of its visible bytes that the text contains.
  std::vector<size_t> count_visible_bytes_by_turn(size_t num_turns) const {
    std::vector<size_t> num_visible_bytes_by_turn(num_turns, 0);
    for (const jinja::OriginSpan& origin_span : rendering_.origin_spans) {
      if (static_cast<size_t>(origin_span.origin) >= num_turns) continue;
      num_visible_bytes_by_turn[static_cast<size_t>(origin_span.origin)] += count_visible_bytes(
          std::string_view(rendering_.text).substr(origin_span.begin, origin_span.end - origin_span.begin));
    }
    return num_visible_bytes_by_turn;
  }

  /// Throws UserError (bad data) if the text contains an answer twice. probe_template() checks only
  /// its own conversations.
  void reject_repeated_answer(int turn, const std::string& text) const {
    if (!is_text_repeated(rendering_, turn, text)) return;
    throw data_error("turn {}: the chat template writes this answer more than once; set another {}, or drop the record",
                     turn + 1, keys::data::kChatTemplate);
  }

  /// Returns the text between the generation prompt and the answer of turn `i`, whose text begins at
  /// `offset`. Returns nothing if other text precedes the answer. The prompt is rendered only if
  /// variables of the record may change it.
  std::optional<std::string_view> find_text_after_prompt(size_t offset, size_t i, bool is_prompt_fixed) const {
    const std::string_view text = std::string_view(rendering_.text).substr(0, offset);
    if (!is_prompt_fixed) {
      const std::string prompt = render_turns_(i, /*add_generation_prompt=*/true);
      return text.starts_with(prompt) ? std::optional(text.substr(prompt.size())) : std::nullopt;
    }
    const std::string& prompt = traits_.generation_prompt;
    const size_t begin = prompt.empty() ? std::string_view::npos : text.rfind(prompt);
    return begin == std::string_view::npos ? std::nullopt : std::optional(text.substr(begin + prompt.size()));
  }

  /// Returns the begin of the answer of turn `i`, whose text begins at `offset`: the begin of the white
  /// space that the model has to generate. Adds a notice if the template writes other text between the
  /// generation prompt and the last answer: evaluations and `generate` continue the prompt itself.
  size_t find_answer_begin(size_t offset, size_t i, bool is_last_answer, std::span<const io::TemplateValue> variables,
                           std::vector<io::Notice>& notices) const {
    const bool is_prompt_fixed =
        std::ranges::all_of(variables, [](const io::TemplateValue& variable) { return variable.name == "tools"; });
    const auto text_after_prompt =
        is_prompt_fixed && !is_last_answer ? std::nullopt : find_text_after_prompt(offset, i, is_prompt_fixed);
    const bool is_white_space =
        text_after_prompt && count_leading_white_space(*text_after_prompt) == text_after_prompt->size();
    if (is_last_answer && text_after_prompt && !is_white_space &&
        !is_generated({offset - text_after_prompt->size(), offset})) {
      notices.push_back(
          {"text between the generation prompt and an answer, which is not learned", make_excerpt(*text_after_prompt)});
    }
    if (is_prompt_fixed || !text_after_prompt) return offset - compute_leading_space_length(offset);
    return is_white_space ? offset - text_after_prompt->size() : offset;
  }

  /// Returns the spans of an answer, extended to `begin` and by the end of turn after it.
  std::vector<TextSpan> extend_answer_spans(std::vector<TextSpan> spans, size_t begin, bool is_last_answer) {
    spans.front().begin = begin;
    size_t& end = spans.back().end;
    const size_t ending_length = compute_answer_ending_length(end);
    if (ending_length > 0) {
      end += ending_length;
    } else if (is_last_answer) {
      end = find_generation_block_end(end);
      if (const size_t length_through_ending = compute_length_through_ending(end); length_through_ending > 0) {
        end += length_through_ending;
      } else if (!std::string_view(rendering_.text).substr(0, end).ends_with(traits_.end_of_turn_token)) {
        insert_end_of_turn(end);
        end += traits_.end_of_turn_token.size();
      }
    }
    return spans;
  }

  /// Returns compute_answer_ending_length(). If it is 0, returns the length of the text up to and
  /// including the next end of turn, provided that only the template wrote this text; else 0.
  size_t compute_length_through_ending(size_t offset) const {
    if (const size_t ending_length = compute_answer_ending_length(offset); ending_length > 0) return ending_length;
    const size_t token_begin = rendering_.text.find(traits_.end_of_turn_token, offset);
    if (token_begin == std::string::npos) return 0;
    const size_t end = token_begin + traits_.end_of_turn_token.size();
    const bool is_from_template =
        std::ranges::none_of(rendering_.origin_spans, [&](const jinja::OriginSpan& origin_span) {
          return !origin_span.empty() && origin_span.begin < end && origin_span.end > offset;
        });
    return is_from_template ? end - offset : 0;
  }

  /// Returns the end of the `generation` block that contains `offset`, or `offset` if there is
  /// none. Excludes white space at the end of the block, because an end of turn replaces it.
  size_t find_generation_block_end(size_t offset) const {
    for (const jinja::GeneratedSpan& generated_span : rendering_.generated_spans) {
      if (generated_span.begin >= offset || offset >= generated_span.end) continue;
      const std::string_view remaining_text =
          std::string_view(rendering_.text).substr(offset, generated_span.end - offset);
      return offset + remaining_text.find_last_not_of(kWhiteSpace) + 1;  // npos + 1 is 0: only white space
    }
    return offset;
  }

  bool ends_with_end_of_turn(const TextSpan& answer) const {
    const std::string_view text = std::string_view(rendering_.text).substr(answer.begin, answer.end - answer.begin);
    return text.ends_with(traits_.end_of_turn_token) ||
           std::ranges::any_of(traits_.answer_endings,
                               [text](const std::string& ending) { return text.ends_with(ending); });
  }

  /// Sets the answers and their weights. `answers` are the spans of all answers in order, also those
  /// with weight 0. Spans that touch are merged if their weights are equal.
  void set_answers(const std::vector<WeightedSpan>& answers, RenderedChat& chat) const {
    std::vector<WeightedSpan> spans = find_generated_spans(answers, chat.media);
    spans.insert(spans.begin(), answers.begin(), answers.end());
    std::vector<WeightedSpan> learned_spans;
    std::ranges::copy_if(
        spans, std::back_inserter(learned_spans), [](float weight) { return weight > 0; }, &WeightedSpan::weight);
    std::ranges::stable_sort(learned_spans, {}, [](const WeightedSpan& answer) { return answer.span.begin; });
    std::vector<WeightedSpan> merged_spans;
    for (const WeightedSpan& answer : learned_spans) add_or_merge_span(merged_spans, answer);
    for (const WeightedSpan& answer : answers) {
      if (answer.weight == 0) merged_spans = subtract_span(merged_spans, answer.span);
    }
    const bool has_fractions = std::ranges::any_of(
        merged_spans, [](float weight) { return weight != 1; }, &WeightedSpan::weight);
    for (const auto& [span, weight] : merged_spans) {
      chat.answers.push_back(span);
      if (has_fractions) chat.answer_weights.push_back(weight);
    }
  }

  /// Returns the output of `generation` blocks outside of media and of `answers`, with the weight of
  /// the block's next answer, else of its last one, else 1. White space at the end of a block is
  /// included only if the block has an end of turn.
  std::vector<WeightedSpan> find_generated_spans(std::span<const WeightedSpan> answers,
                                                 std::span<const MediaSpan> media) const {
    std::vector<WeightedSpan> spans;
    for (const jinja::GeneratedSpan& generated_span : rendering_.generated_spans) {
      size_t begin = generated_span.begin;
      const std::string_view generated_text =
          std::string_view(rendering_.text).substr(begin, generated_span.end - begin);
      const bool has_end_of_turn = generated_text.find(traits_.end_of_turn_token) != std::string_view::npos;
      const size_t end = has_end_of_turn ? generated_span.end
                                         : begin + generated_text.find_last_not_of(kWhiteSpace) + 1;  // npos + 1 is 0
      float weight = 1;
      for (const auto& [answer, answer_weight] : answers) {
        if (answer.end <= begin || answer.begin >= end) continue;
        weight = answer_weight;
        if (begin < answer.begin) spans.push_back({{begin, answer.begin}, weight});
        begin = answer.end;
      }
      if (begin < end) spans.push_back({{begin, end}, weight});
    }
    for (const MediaSpan& media_span : media) spans = subtract_span(spans, media_span.span);
    return spans;
  }

  /// Returns the parts of `spans` outside of `removed`.
  static std::vector<WeightedSpan> subtract_span(std::span<const WeightedSpan> spans, const TextSpan& removed) {
    std::vector<WeightedSpan> remaining;
    for (const WeightedSpan& answer : spans) {
      const auto [begin, end] = answer.span;
      if (removed.end <= begin || removed.begin >= end) {
        remaining.push_back(answer);
        continue;
      }
      if (begin < removed.begin) remaining.push_back({{begin, removed.begin}, answer.weight});
      if (removed.end < end) remaining.push_back({{removed.end, end}, answer.weight});
    }
    return remaining;
  }

  /// Returns whether a `generation` block has written the whole of `span`.
  bool is_generated(const TextSpan& span) const {
    return std::ranges::any_of(rendering_.generated_spans, [&span](const jinja::GeneratedSpan& generated_span) {
      return generated_span.begin <= span.begin && span.end <= generated_span.end;
    });
  }

  /// Returns the length of the white space before `offset` that the model has to generate.
  size_t compute_leading_space_length(size_t offset) const {
    const std::string& answer_leading_space = traits_.answer_leading_space;
    if (!std::string_view(rendering_.text).substr(0, offset).ends_with(answer_leading_space)) return 0;
    const bool is_from_template = answer_leading_space.empty() || !is_turn_text(offset - answer_leading_space.size());
    return is_from_template ? answer_leading_space.size() : 0;
  }

  /// Returns the length of the template text from `offset` through the end of turn, or 0 if no end
  /// of turn follows.
  size_t compute_answer_ending_length(size_t offset) const {
    const std::string_view following_text = std::string_view(rendering_.text).substr(offset);
    const auto is_template_text = [&](std::string_view ending) {
      return following_text.starts_with(ending) && !is_turn_text(offset) && !is_turn_text(offset + ending.size() - 1);
    };
    for (const std::string& ending : traits_.answer_endings) {
      if (is_template_text(ending)) return ending.size();
    }
    const size_t num_white_space_bytes = count_leading_white_space(following_text);
    const bool has_end_of_turn =
        following_text.substr(num_white_space_bytes).starts_with(traits_.end_of_turn_token) &&
        is_template_text(following_text.substr(0, num_white_space_bytes + traits_.end_of_turn_token.size()));
    return has_end_of_turn ? num_white_space_bytes + traits_.end_of_turn_token.size() : 0;
  }

  /// Inserts the end of turn at `offset`.
  void insert_end_of_turn(size_t offset) {
    const size_t num_white_space_bytes = count_leading_white_space(std::string_view(rendering_.text).substr(offset));
    // Only white space at the end of the text can be replaced; other white space separates turns.
    const size_t num_replaced_bytes =
        offset + num_white_space_bytes == rendering_.text.size() ? num_white_space_bytes : 0;
    rendering_.text.replace(offset, num_replaced_bytes, traits_.end_of_turn_token);
    std::erase_if(rendering_.generated_spans,
                  [offset](const jinja::GeneratedSpan& generated_span) { return generated_span.begin >= offset; });
    for (jinja::GeneratedSpan& generated_span : rendering_.generated_spans)
      generated_span.end = std::min(generated_span.end, offset);
  }

  /// Returns whether the character at `offset` comes from the text of a turn.
  bool is_turn_text(size_t offset) const {
    return std::ranges::any_of(rendering_.origin_spans, [offset](const jinja::OriginSpan& origin_span) {
      return origin_span.begin <= offset && offset < origin_span.end;
    });
  }

  /// Appends a span, or extends the last one if both touch and have equal weights. Bytes of two
  /// answers with different weights belong to the first one.
  static void add_or_merge_span(std::vector<WeightedSpan>& answers, WeightedSpan answer) {
    if (answers.empty() || answers.back().span.end < answer.span.begin) {
      answers.push_back(answer);
      return;
    }
    WeightedSpan& last = answers.back();
    if (last.weight == answer.weight) {
      last.span.end = std::max(last.span.end, answer.span.end);
      return;
    }
    answer.span.begin = last.span.end;
    if (answer.span.begin < answer.span.end) answers.push_back(answer);
  }

  /// Returns all media tokens. If turns are lists of blocks, only the template writes media tokens,
  /// so the same characters in the text of a turn are not media.
  std::vector<MediaSpan> find_media_spans() const {
    std::vector<MediaSpan> spans;
    for (size_t pos = 0;;) {
      const size_t image_begin = find_token(settings_.image_markup.token, pos),
                   video_begin = find_token(settings_.video_markup.token, pos);
      const size_t begin = std::min(image_begin, video_begin);
      if (begin == std::string::npos) return spans;
      const bool is_video = video_begin < image_begin;
      const size_t end = begin + (is_video ? settings_.video_markup : settings_.image_markup).token.size();
      if (!traits_.content_format.user_uses_blocks || !is_turn_text(begin)) spans.push_back({{begin, end}, is_video});
      pos = end;
    }
  }

  size_t find_token(const std::string& token, size_t search_begin) const {
    return token.empty() ? std::string::npos : rendering_.text.find(token, search_begin);
  }

  jinja::RenderedText rendering_;
  const TemplateTraits& traits_;
  const TemplateSettings& settings_;
  const TurnsRenderer& render_turns_;
};

}  // namespace

RenderedChat build_rendered_chat(jinja::RenderedText rendering, std::span<const Turn> turns, bool ends_with_answer,
                                 const TemplateTraits& traits, const TemplateSettings& settings,
                                 std::span<const io::TemplateValue> variables, const TurnsRenderer& render_turns) {
  return RenderedChatBuilder(std::move(rendering), traits, settings, render_turns)
      .build_chat(turns, ends_with_answer, variables);
}

}  // namespace vlmtrain::text
