#include "text/template/generated_answer.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "text/unicode/unicode_classes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::text {
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
        "turn {}: the chat template writes other text before this answer than its generation prompt, so the label "
        "tokens of its tool calls or reasoning are unknown; set another {}, or drop the record",
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
