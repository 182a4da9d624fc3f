#include "text/template/generated_answer.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "text/unicode/unicode_classes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

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

}  // namespace

GeneratedAnswer find_generated_answer(const jinja::RenderedText& rendering, const Turn& turn, int origin,
                                      const std::string& prompt, bool is_last_answer, const TemplateTraits& traits) {
  constexpr const char* kOmittedReasoning = "reasoning that the chat template omits";
  const AnswerFields fields = parse_answer_fields(turn);
  const std::string_view text = rendering.text, reasoning = trim_white_space(fields.reasoning);
  if (!text.starts_with(prompt)) {
    if (fields.call_names.empty() && !contains(text, reasoning)) return {.notice_kinds = {kOmittedReasoning}};
    throw data_error(
        "turn {}: the chat template writes other text before this answer than its generation prompt, so the label "
        "tokens of its tool calls or reasoning are unknown; set another data.chat_template, or drop the record",
        origin + 1);
  }
  GeneratedAnswer answer;
  const FollowingText following = find_following_text(rendering, origin, prompt.size());
  size_t end = text.find(traits.end_of_turn_token, following.answer_end);
  answer.has_end_of_turn = end != std::string::npos && end < following.next_turn_begin;
  if (answer.has_end_of_turn) {
    end += traits.end_of_turn_token.size();
  } else if (is_last_answer) {
    end = text.find_last_not_of(kWhiteSpace) + 1;
  } else {
    throw data_error(
        "turn {}: the chat template writes no end of turn after this answer with tool calls or reasoning, so its label "
        "tokens are unknown; set another data.chat_template, or drop the record",
        origin + 1);
  }
  answer.span = {prompt.size(), std::max(end, prompt.size())};
  const std::string_view generated_text = text.substr(answer.span->begin, answer.span->end - answer.span->begin);
  for (const std::string& name : fields.call_names) {
    if (contains(generated_text, name)) continue;
    throw data_error(
        "turn {}: the chat template omits the call of the tool {}; set a data.chat_template that supports tools, or "
        "drop the record",
        origin + 1, make_excerpt(name));
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
