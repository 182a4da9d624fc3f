#include "text/template/template_probe.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string_view>

#include "text/unicode/characters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::text {
namespace {

/// The conversation that most probes render. Turns 1 and 3 are the answers.
const std::array kTwoRoundConversation{
    Turn{Role::kUser, "First question?"}, Turn{Role::kAssistant, "The first answer."},
    Turn{Role::kUser, "Second question?"}, Turn{Role::kAssistant, "The second answer."}};

/// A tool, and a call of it.
constexpr std::string_view kProbeTools =
    R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}])";
constexpr std::string_view kProbeCalls =
    R"([{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}])";

/// A probe that renders small conversations and compares the results.
class TemplateProbe {
 public:
  TemplateProbe(const jinja::Template& jinja_template, const TemplateSource& source, const TemplateSettings& settings,
                const Tokenizer& tokenizer)
      : jinja_template_(jinja_template), source_(source), settings_(settings), tokenizer_(tokenizer) {}

  TemplateTraits detect_traits() {
    detect_content_format();
    detect_called_answer_format();
    detect_system_format();
    detect_text_before_answer();
    detect_end_of_turn();
    const std::string bos_token = find_bos_token();
    traits_.writes_bos_token =
        !bos_token.empty() && render({kTwoRoundConversation.data(), 2}).text.starts_with(bos_token);
    return std::move(traits_);
  }

 private:
  jinja::RenderedText render(std::span<const Turn> turns, bool add_generation_prompt = false) const {
    return render_messages(jinja_template_, turns, traits_.content_format, settings_, add_generation_prompt,
                           record_variables_);
  }

  /// Tries conversations without tools first. Templates such as Hermes' "tool_use" cannot render
  /// these.
  void detect_content_format() {
    std::exception_ptr render_error = try_content_formats();
    if (!render_error) return;
    record_variables_ = {{.name = "tools", .json = std::string(kProbeTools)}};
    if (!try_content_formats()) return;
    std::rethrow_exception(render_error);
  }

  /// Tries lists of blocks for all roles first, as vision-language models use them, then strings.
  /// Returns null if a format is found, else the error.
  std::exception_ptr try_content_formats() {
    constexpr std::array kContentFormats{ContentFormat{true, true, true}, ContentFormat{true, true, false},
                                         ContentFormat{false, false, false}};
    std::exception_ptr render_error;
    for (const ContentFormat& content_format : kContentFormats) {
      traits_.content_format = content_format;
      try {
        const jinja::RenderedText rendering = render(kTwoRoundConversation);
        if (contains_all_turns(rendering, kTwoRoundConversation.size()) && !prints_content_blocks(rendering))
          return nullptr;
      } catch (const UserError&) {
        // The last format is strings, which every template supports, so its error is relevant.
        render_error = std::current_exception();
      }
    }
    if (render_error) return render_error;
    return std::make_exception_ptr(data_error(
        "{}: this chat template omits the answers of a conversation with two questions and answers; set another {}",
        source_.name, keys::data::kChatTemplate));
  }

  /// Sets called_answer_uses_blocks. Templates such as Kimi K2's read the content of an answer with
  /// tool calls only as a string.
  void detect_called_answer_format() {
    std::array<Turn, 2> turns{kTwoRoundConversation[0], kTwoRoundConversation[1]};
    turns[1].fields.push_back({.name = "tool_calls", .json = std::string(kProbeCalls)});
    try {
      traits_.content_format.called_answer_uses_blocks = !prints_content_blocks(render(turns));
    } catch (const UserError&) {
      return;  // The template rejects tool calls. That is reported only if a conversation has them.
    }
  }

  static bool contains_all_turns(const jinja::RenderedText& rendering, size_t num_turns) {
    for (size_t i = 0; i < num_turns; ++i) {
      const auto spans = find_origin_spans(rendering, static_cast<int>(i));
      if (spans.empty() || spans.back().end == spans.front().begin) return false;
    }
    return true;
  }

  /// Returns whether the template printed lists of blocks, as templates for strings do.
  static bool prints_content_blocks(const jinja::RenderedText& rendering) {
    return !find_origin_spans(rendering, kBlockTypeOrigin).empty();
  }

  /// Sets system_uses_blocks, and adds a note if the template omits system messages.
  void detect_system_format() {
    const std::array turns{Turn{Role::kSystem, "Be brief."}, kTwoRoundConversation[0], kTwoRoundConversation[1]};
    // Templates that do not support a system turn raise an error. It is reported only if a
    // conversation has such a turn.
    bool is_system_turn_rejected = false;
    for (const bool as_blocks : {traits_.content_format.user_uses_blocks, false}) {
      traits_.content_format.system_uses_blocks = as_blocks;
      is_system_turn_rejected = false;
      try {
        const jinja::RenderedText rendering = render(turns);
        if (contains_all_turns(rendering, turns.size()) && !prints_content_blocks(rendering)) return;
      } catch (const UserError&) {
        is_system_turn_rejected = true;
      }
    }
    if (!is_system_turn_rejected) traits_.notes.emplace_back("it omits system messages");
  }

  /// Sets generation_prompt and answer_leading_space, and adds notes if training text and prompt
  /// differ.
  void detect_text_before_answer() {
    const std::string prompt = render({kTwoRoundConversation.data(), 1}, /*add_generation_prompt=*/true).text;
    if (const std::string rendered_question = render({kTwoRoundConversation.data(), 1}).text;
        prompt.starts_with(rendered_question)) {
      traits_.generation_prompt = prompt.substr(rendered_question.size());
    }
    const jinja::RenderedText rendering = render({kTwoRoundConversation.data(), 2});
    const std::string text_before_answer = rendering.text.substr(0, find_origin_spans(rendering, 1).front().begin);
    if (!text_before_answer.starts_with(prompt)) {
      traits_.notes.push_back(fmt::format("its generation prompt ends with \"{}\", but answers follow \"{}\"",
                                          make_tail_excerpt(prompt), make_tail_excerpt(text_before_answer)));
      return;
    }
    const auto prompt_token_ids = tokenizer_.encode(prompt).ids,
               training_token_ids = tokenizer_.encode(rendering.text).ids;
    if (prompt_token_ids.size() > training_token_ids.size() ||
        !std::equal(prompt_token_ids.begin(), prompt_token_ids.end(), training_token_ids.begin())) {
      traits_.notes.emplace_back(
          "its generation prompt ends within a token of the training text, so generation and training use different "
          "tokens");
    }
    const std::string text_after_prompt = text_before_answer.substr(prompt.size());
    if (count_leading_white_space(text_after_prompt) == text_after_prompt.size()) {
      traits_.answer_leading_space = text_after_prompt;
    }
  }

  static std::string make_tail_excerpt(const std::string& text) {
    constexpr size_t kMaxExcerptBytes = 40;  // longer than the generation prompts of common templates
    return make_excerpt(text.size() > kMaxExcerptBytes ? text.substr(text.size() - kMaxExcerptBytes) : text);
  }

  /// Sets end_of_turn_token, answer_endings and omits_last_end_of_turn. Throws UserError (bad data)
  /// if no token can end a turn.
  void detect_end_of_turn() {
    const jinja::RenderedText rendering = render(kTwoRoundConversation);
    reject_repeated_answers(rendering);
    const auto get_text_after_answer = [&](int turn, size_t next_turn_begin) {
      const size_t end = find_origin_spans(rendering, turn).back().end;
      return std::string_view(rendering.text).substr(end, next_turn_begin - end);
    };
    const std::string_view text_after_last_answer = get_text_after_answer(3, rendering.text.size()),
                           text_after_earlier_answer =
                               get_text_after_answer(1, find_origin_spans(rendering, 2).front().begin);
    if (const auto token = find_ending_token(text_after_last_answer)) {
      traits_.end_of_turn_token = token->text;
      traits_.answer_endings.emplace_back(text_after_last_answer.substr(0, token->end));
    }
    if (!source_.end_of_turn_token.empty()) {
      traits_.end_of_turn_token = source_.end_of_turn_token;
      check_token_exists(traits_.end_of_turn_token);
    }
    if (const auto token = find_turn_end_token(text_after_earlier_answer)) {
      traits_.answer_endings.emplace_back(text_after_earlier_answer.substr(0, token->end));
      if (traits_.end_of_turn_token.empty()) traits_.end_of_turn_token = token->text;
    }
    traits_.omits_last_end_of_turn = !find_special_token(text_after_last_answer);
    if (traits_.end_of_turn_token.empty()) traits_.end_of_turn_token = select_eos_token();
  }

  void reject_repeated_answers(const jinja::RenderedText& rendering) const {
    for (const int turn : {1, 3}) {
      if (!is_text_repeated(rendering, turn, kTwoRoundConversation[static_cast<size_t>(turn)].text)) continue;
      throw data_error(
          "{}: this chat template writes an answer more than once, so its label tokens are ambiguous; set another {}",
          source_.name, keys::data::kChatTemplate);
    }
  }

  std::string select_eos_token() const {
    for (const std::string& token : settings_.eos_tokens) {
      if (tokenizer_.token_to_id(token)) return token;
    }
    throw data_error(
        "{}: this chat template writes no token after an answer, and the tokenizer has no eos_token; add it to "
        "tokenizer_config.json, or set another {}",
        source_.name, keys::data::kChatTemplate);
  }

  void check_token_exists(std::string_view token) const {
    if (tokenizer_.token_to_id(token)) return;
    throw data_error("the tokenizer has no token {}, which the chat template {} needs; set another {}", token,
                     source_.name, keys::data::kChatTemplate);
  }

  /// A token found in a text.
  struct TokenMatch {
    std::string text;
    size_t end;  // offset in the searched text
  };

  /// Returns the first token of `text` that is special or one of `eos_tokens`, or nothing.
  std::optional<TokenMatch> find_special_token(std::string_view text) const {
    const Encoding encoding = tokenizer_.encode(text);
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      const std::string token(tokenizer_.id_to_token(encoding.ids[i]));
      if (!tokenizer_.is_special(encoding.ids[i]) && !is_eos_token(token)) continue;
      const size_t begin = text.find(token, encoding.starts[i]);
      if (begin != std::string_view::npos) return TokenMatch{token, begin + token.size()};
    }
    return std::nullopt;
  }

  bool is_eos_token(const std::string& token) const { return std::ranges::count(settings_.eos_tokens, token) > 0; }

  /// Returns find_special_token(). If special tokens through one of `eos_tokens` follow it directly, as
  /// in "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", returns that one, because the model stops there.
  std::optional<TokenMatch> find_ending_token(std::string_view text) const {
    auto first = find_special_token(text);
    for (auto token = first; token && !is_eos_token(token->text);) {
      const auto next = find_special_token(text.substr(token->end));
      if (!next || next->end != next->text.size()) return first;
      token = TokenMatch{next->text, token->end + next->end};
      if (is_eos_token(token->text)) return token;
    }
    return first;
  }

  /// Returns the token that ends the turn in `text`, the text between an answer and the next turn,
  /// or nothing. A token other than end_of_turn_token and `eos_tokens` counts only if another
  /// special token follows, because it may otherwise begin the next turn.
  std::optional<TokenMatch> find_turn_end_token(std::string_view text) const {
    const auto first = find_special_token(text);
    if (!first || first->end != count_leading_white_space(text) + first->text.size()) return std::nullopt;
    const auto token = find_ending_token(text);
    const bool ends_turn = token->text == traits_.end_of_turn_token || is_eos_token(token->text);
    return ends_turn || find_special_token(text.substr(token->end)) ? token : std::nullopt;
  }

  std::string find_bos_token() const {
    for (const auto& [name, token] : settings_.special_tokens_map) {
      if (name == "bos_token") return token;
    }
    const Encoding bos_encoding = tokenizer_.encode("", /*add_special_tokens=*/true);
    return bos_encoding.ids.empty() ? "" : std::string(tokenizer_.id_to_token(bos_encoding.ids.front()));
  }

  const jinja::Template& jinja_template_;
  const TemplateSource& source_;
  const TemplateSettings& settings_;
  const Tokenizer& tokenizer_;
  std::vector<io::TemplateValue> record_variables_{};  ///< of the rendered conversations
  TemplateTraits traits_;
};

}  // namespace

jinja::RenderedText render_messages(const jinja::Template& jinja_template, std::span<const Turn> turns,
                                    const ContentFormat& content_format, const TemplateSettings& settings,
                                    bool add_generation_prompt, std::span<const io::TemplateValue> record_variables) {
  std::vector<std::pair<std::string, jinja::Value>> variables{
      {"messages", make_messages(turns, content_format, settings)},
      {"documents", jinja::Value::none()},
      {"add_generation_prompt", jinja::Value(add_generation_prompt)}};
  for (const auto& [name, token] : settings.special_tokens_map) variables.emplace_back(name, jinja::Value::text(token));
  bool has_tools = false;
  for (const io::TemplateValue& variable : record_variables) {
    has_tools = has_tools || variable.name == "tools";
    std::erase_if(variables, [&](const auto& entry) { return entry.first == variable.name; });
    variables.emplace_back(variable.name, jinja::Value::from_json(nlohmann::ordered_json::parse(variable.json)));
  }
  if (!has_tools) variables.emplace_back("tools", jinja::Value::none());
  return jinja_template.render(variables, {.current_time = settings.current_time});
}

TemplateTraits probe_template(const jinja::Template& jinja_template, const TemplateSource& source,
                              const TemplateSettings& settings, const Tokenizer& tokenizer) {
  return TemplateProbe(jinja_template, source, settings, tokenizer).detect_traits();
}

std::vector<TextSpan> find_origin_spans(const jinja::RenderedText& rendering, int origin) {
  std::vector<TextSpan> spans;
  for (const jinja::OriginSpan& origin_span : rendering.origin_spans) {
    if (origin_span.origin == origin) spans.push_back({origin_span.begin, origin_span.end});
  }
  // A part that the template removed may leave an empty span, which is dropped unless all spans are
  // empty.
  const auto is_empty = [](const TextSpan& span) { return span.begin == span.end; };
  if (!std::ranges::all_of(spans, is_empty)) std::erase_if(spans, is_empty);
  return spans;
}

bool is_text_repeated(const jinja::RenderedText& rendering, int origin, std::string_view text) {
  size_t num_bytes = 0;
  for (const TextSpan& span : find_origin_spans(rendering, origin)) num_bytes += span.end - span.begin;
  // A part of the text may be missing or repeated; only a full second copy makes it ambiguous.
  return !text.empty() && num_bytes >= 2 * text.size();
}

}  // namespace vlmtrain::text
