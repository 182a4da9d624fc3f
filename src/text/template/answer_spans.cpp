#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>

#include "text/template/rendered_chat.h"
#include "text/unicode/characters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

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

namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view trim_white_space(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kWhiteSpace), text.size());
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

/// Returns the name of a tool or of a tool call; "" without a name.
std::string get_function_name(const nlohmann::json& tool) {
  if (!tool.is_object()) return {};
  const nlohmann::json& function = tool.contains("function") ? tool.at("function") : tool;
  const bool has_name = function.is_object() && function.contains("name") && function.at("name").is_string();
  return has_name ? function.at("name").get<std::string>() : "";
}

/// The texts in the fields of an answer.
struct AnswerFields {
  std::vector<std::string> call_names;  ///< of the called tools
  std::string reasoning;
};

AnswerFields parse_answer_fields(const Turn& turn) {
  AnswerFields fields;
  for (const io::TemplateValue& field : turn.fields) {
    const auto value = nlohmann::json::parse(field.json);
    if (field.name == "tool_calls") {
      for (const auto& call : value) fields.call_names.push_back(get_function_name(call));
    } else if (field.name != "name" && field.name != "tool_call_id") {
      fields.reasoning = value.get<std::string>();
    }
  }
  return fields;
}

/// The parts of the text after a generation prompt.
struct FollowingText {
  size_t answer_end;       ///< end of the last text of the answer, or the end of the prompt
  size_t next_turn_begin;  ///< begin of the first text of another turn, or the end of the text
};

FollowingText find_following_text(const jinja::RenderedText& rendering, int origin, size_t prompt_end) {
  FollowingText following{prompt_end, rendering.text.size()};
  for (const jinja::OriginSpan& span : rendering.origin_spans) {
    if (span.empty() || span.begin < prompt_end || span.origin == kBlockTypeOrigin) continue;
    if (span.origin == origin) {
      following.answer_end = std::max(following.answer_end, span.end);
    } else {
      following.next_turn_begin = std::min(following.next_turn_begin, span.begin);
    }
  }
  return following;
}

/// Returns the tokens that end a turn: the end-of-turn token and the EOS tokens, because templates
/// such as gpt-oss' end a call and a text with different ones.
std::vector<std::string_view> get_ending_tokens(const TemplateTraits& traits, const TemplateSettings& settings) {
  std::vector<std::string_view> tokens{traits.end_of_turn_token};
  tokens.insert(tokens.end(), settings.eos_tokens.begin(), settings.eos_tokens.end());
  std::erase_if(tokens, [](std::string_view token) { return token.empty(); });
  return tokens;
}

/// Returns the end of the first token after `begin` that ends a turn, or npos.
size_t find_end_of_turn(std::string_view text, size_t begin, const TemplateTraits& traits,
                        const TemplateSettings& settings) {
  size_t token_begin = std::string_view::npos, end = std::string_view::npos;
  for (const std::string_view token : get_ending_tokens(traits, settings)) {
    const size_t pos = text.find(token, begin);
    if (pos >= token_begin) continue;
    token_begin = pos;
    end = pos + token.size();
  }
  return end;
}

/// Returns the end of `answered`, the text of the turns through an answer, in `text`, the text of all
/// turns. Returns npos if `answered` does not end a turn after `prompt_end`, or if `text` begins
/// otherwise.
size_t find_common_turn_end(std::string_view text, std::string_view answered, size_t prompt_end,
                            const TemplateTraits& traits, const TemplateSettings& settings) {
  answered = answered.substr(0, answered.find_last_not_of(kWhiteSpace) + 1);
  const bool ends_turn = std::ranges::any_of(get_ending_tokens(traits, settings),
                                             [&](std::string_view token) { return answered.ends_with(token); });
  return ends_turn && answered.size() > prompt_end && text.starts_with(answered) ? answered.size()
                                                                                 : std::string_view::npos;
}

}  // namespace

GeneratedAnswer find_generated_answer(const jinja::RenderedText& rendering, const Turn& turn, int origin,
                                      const TurnsRenderer& render_turns, bool is_last_answer,
                                      const TemplateTraits& traits, const TemplateSettings& settings) {
  constexpr const char* kOmittedReasoning = "reasoning that the chat template omits";
  const AnswerFields fields = parse_answer_fields(turn);
  const std::string_view text = rendering.text, reasoning = trim_white_space(fields.reasoning);
  const auto num_previous_turns = static_cast<size_t>(origin);
  const std::string prompt = render_turns(num_previous_turns, /*add_generation_prompt=*/true);
  if (!text.starts_with(prompt)) {
    if (fields.call_names.empty() && !contains(text, reasoning)) return {.notice_kinds = {kOmittedReasoning}};
    throw data_error(
        "turn {}: the chat template writes other text before this answer than its generation prompt; set "
        "chat_template_kwargs of the record (such as {{\"enable_thinking\": true}}) or another {}, or drop the record",
        origin + 1, keys::data::kChatTemplate);
  }
  GeneratedAnswer answer;
  const FollowingText following = find_following_text(rendering, origin, prompt.size());
  if (fields.call_names.empty() &&
      !contains(text.substr(prompt.size(), following.next_turn_begin - prompt.size()), reasoning)) {
    return {.notice_kinds = {kOmittedReasoning}};
  }
  size_t end = find_end_of_turn(text.substr(0, following.next_turn_begin), following.answer_end, traits, settings);
  if (end == std::string::npos && !is_last_answer) {
    const std::string answered = render_turns(num_previous_turns + 1, /*add_generation_prompt=*/false);
    end = find_common_turn_end(text, answered, prompt.size(), traits, settings);
  }
  answer.has_end_of_turn = end != std::string::npos;
  if (!answer.has_end_of_turn && is_last_answer) {
    end = text.find_last_not_of(kWhiteSpace) + 1;
  } else if (!answer.has_end_of_turn) {
    throw data_error(
        "turn {}: the chat template writes no end of turn after this answer with tool calls or reasoning, so its label "
        "tokens are unknown; set another {}, or drop the record",
        origin + 1, keys::data::kChatTemplate);
  }
  answer.span = {prompt.size(), std::max(end, prompt.size())};
  const std::string_view generated_text = text.substr(answer.span->begin, answer.span->end - answer.span->begin);
  for (const std::string& name : fields.call_names) {
    if (contains(generated_text, name)) continue;
    throw data_error(
        "turn {}: the chat template omits the call of the tool {}; set a {} that supports tools, or drop the record",
        origin + 1, make_excerpt(name), keys::data::kChatTemplate);
  }
  if (!contains(generated_text, reasoning)) answer.notice_kinds.push_back(kOmittedReasoning);
  if (!contains(generated_text, trim_white_space(turn.text)))
    answer.notice_kinds.push_back("text of an answer that the chat template omits");
  return answer;
}

std::optional<io::Notice> find_omitted_tools(std::string_view text, std::span<const io::TemplateValue> variables) {
  const auto tools = std::ranges::find(variables, "tools", &io::TemplateValue::name);
  if (tools == variables.end()) return std::nullopt;
  for (const auto& tool : nlohmann::json::parse(tools->json)) {
    if (contains(text, get_function_name(tool))) return std::nullopt;
  }
  return io::Notice{.kind = "tools that the chat template omits", .example = make_excerpt(tools->json)};
}

}  // namespace vlmtrain::text
