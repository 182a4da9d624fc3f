#include "text/template_probe.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string_view>

#include "text/white_space.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::text {
namespace {

const std::array kTwoRounds{Turn{Role::kUser, "First question?"}, Turn{Role::kAssistant, "The first answer."},
                            Turn{Role::kUser, "Second question?"}, Turn{Role::kAssistant, "The second answer."}};

class Probe {
 public:
  Probe(const jinja::Template& jinja, const TemplateSource& source, const TemplateSettings& settings,
        const Tokenizer& tokenizer)
      : jinja_(jinja), source_(source), settings_(settings), tokenizer_(tokenizer) {}

  TemplateHabits habits() {
    find_form();
    find_form_of_system();
    find_beginning_of_answers();
    find_end_of_turn();
    const std::string start = text_that_starts();
    found_.writes_start = !start.empty() && render({kTwoRounds.data(), 2}).text.starts_with(start);
    return std::move(found_);
  }

 private:
  jinja::Rendering render(std::span<const Turn> turns, bool add_generation_prompt = false) const {
    return render_messages(jinja_, turns, found_.form, settings_, add_generation_prompt);
  }

  /// Blocks for both, since that is how people of vision-language models write messages; else strings.
  void find_form() {
    constexpr std::array kForms{ContentForm{true, true, true}, ContentForm{true, true, false},
                                ContentForm{false, false, false}};
    std::exception_ptr refusal;
    for (const ContentForm& form : kForms) {
      found_.form = form;
      try {
        const jinja::Rendering rendering = render(kTwoRounds);
        if (holds_all(rendering, kTwoRounds.size()) && !shows_blocks(rendering)) return;
      } catch (const UserError&) {
        refusal = std::current_exception();  // that of the strings, which every template takes
      }
    }
    if (refusal) std::rethrow_exception(refusal);
    throw data_error(
        "{}: of a conversation of two questions and answers this chat template does not write the answers; name "
        "another under data.chat_template",
        source_.name);
  }

  static bool holds_all(const jinja::Rendering& rendering, size_t turns) {
    for (size_t i = 0; i < turns; ++i) {
      const auto spans = spans_of(rendering, static_cast<int>(i));
      if (spans.empty() || spans.back().end == spans.front().begin) return false;
    }
    return true;
  }

  /// Where it takes a turn's text for one string, it writes a list of blocks as Python or JSON has it.
  static bool shows_blocks(const jinja::Rendering& rendering) { return !spans_of(rendering, kKindOfBlock).empty(); }

  void find_form_of_system() {
    const std::array turns{Turn{Role::kSystem, "Be brief."}, kTwoRounds[0], kTwoRounds[1]};
    bool is_refused = false;  // one that takes no system turn says so where there is one
    for (const bool blocks : {found_.form.blocks_of_user, false}) {
      found_.form.blocks_of_system = blocks;
      is_refused = false;
      try {
        const jinja::Rendering rendering = render(turns);
        if (holds_all(rendering, turns.size()) && !shows_blocks(rendering)) return;
      } catch (const UserError&) {
        is_refused = true;
      }
    }
    if (!is_refused) found_.notes.emplace_back("it leaves system texts out");
  }

  void find_beginning_of_answers() {
    const std::string prompt = render({kTwoRounds.data(), 1}, /*add_generation_prompt=*/true).text;
    if (const std::string question = render({kTwoRounds.data(), 1}).text; prompt.starts_with(question)) {
      found_.generation_prompt = prompt.substr(question.size());
    }
    const jinja::Rendering whole = render({kTwoRounds.data(), 2});
    const std::string before = whole.text.substr(0, spans_of(whole, 1).front().begin);
    if (!before.starts_with(prompt)) {
      found_.notes.push_back(
          fmt::format("it asks with a prompt that ends with \"{}\", and before answers there is \"{}\"", ending(prompt),
                      ending(before)));
      return;
    }
    const auto asked = tokenizer_.encode(prompt).ids, trained = tokenizer_.encode(whole.text).ids;
    if (asked.size() > trained.size() || !std::equal(asked.begin(), asked.end(), trained.begin())) {
      found_.notes.emplace_back(
          "its prompt ends within a token of the trained text, so it is asked in other tokens than it is trained in");
    }
    const std::string rest = before.substr(prompt.size());
    if (white_space_at(rest) == rest.size()) {
      found_.answer_begin = rest;
    } else if (!is_generated(whole, {prompt.size(), before.size()})) {
      found_.notes.push_back(
          fmt::format("between its prompt and an answer it writes \"{}\", which is not learnt", excerpt(rest)));
    }
  }

  static bool is_generated(const jinja::Rendering& rendering, const Span& span) {
    return std::ranges::any_of(rendering.generated, [&span](const jinja::Generated& part) {
      return part.begin <= span.begin && span.end <= part.end;
    });
  }

  static std::string ending(const std::string& text) {
    constexpr size_t kShown = 40;
    return excerpt(text.size() > kShown ? text.substr(text.size() - kShown) : text);
  }

  void find_end_of_turn() {
    const jinja::Rendering whole = render(kTwoRounds);
    refuse_repeated_answers(whole);
    const auto tail_of = [&](int turn, size_t next) {
      const size_t end = spans_of(whole, turn).back().end;
      return std::string_view(whole.text).substr(end, next - end);
    };
    const std::string_view last = tail_of(3, whole.text.size()), earlier = tail_of(1, spans_of(whole, 2).front().begin);
    if (const auto token = first_special(last)) {
      found_.end_of_turn = token->text;
      found_.endings.emplace_back(last.substr(0, token->end));
    }
    if (!source_.end_of_turn.empty()) {
      found_.end_of_turn = source_.end_of_turn;
      require_token(found_.end_of_turn);
    }
    if (const auto token = end_of_earlier(earlier)) {
      found_.endings.emplace_back(earlier.substr(0, token->end));
      if (found_.end_of_turn.empty()) found_.end_of_turn = token->text;
    }
    found_.lacks_end_of_turn = !first_special(last);
    if (found_.end_of_turn.empty()) found_.end_of_turn = likeliest_end();
  }

  void refuse_repeated_answers(const jinja::Rendering& whole) const {
    for (const int turn : {1, 3}) {
      if (!is_repeated(whole, turn, kTwoRounds[static_cast<size_t>(turn)].text)) continue;
      throw data_error(
          "{}: this chat template writes an answer more than once, so it cannot be known which is to be learnt; name "
          "another under data.chat_template",
          source_.name);
    }
  }

  std::string likeliest_end() const {
    for (const std::string& token : settings_.end_tokens) {
      if (tokenizer_.token_to_id(token)) return token;
    }
    throw data_error(
        "{}: this chat template writes no token after an answer, and no eos_token of the tokenizer is known; write it "
        "into tokenizer_config.json, or name another template under data.chat_template",
        source_.name);
  }

  void require_token(std::string_view token) const {
    if (tokenizer_.token_to_id(token)) return;
    throw data_error(
        "the tokenizer has no token {}, which the chat template {} needs; name another under "
        "data.chat_template",
        token, source_.name);
  }

  struct Token {
    std::string text;
    size_t end;  // in what it was looked for in
  };

  /// The first token that ends texts of the model or is special.
  std::optional<Token> first_special(std::string_view text) const {
    const Encoding encoding = tokenizer_.encode(text);
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      const std::string token(tokenizer_.id_to_token(encoding.ids[i]));
      if (!tokenizer_.is_special(encoding.ids[i]) && std::ranges::count(settings_.end_tokens, token) == 0) continue;
      const size_t begin = text.find(token, encoding.starts[i]);
      if (begin != std::string_view::npos) return Token{token, begin + token.size()};
    }
    return std::nullopt;
  }

  /// Behind an answer that another turn follows: a special token may also be that turn's beginning.
  std::optional<Token> end_of_earlier(std::string_view text) const {
    const auto token = first_special(text);
    if (!token || token->end != white_space_at(text) + token->text.size()) return std::nullopt;
    const bool is_end = token->text == found_.end_of_turn || std::ranges::count(settings_.end_tokens, token->text) > 0;
    return is_end || first_special(text.substr(token->end)) ? token : std::nullopt;
  }

  std::string text_that_starts() const {
    for (const auto& [name, token] : settings_.special_tokens) {
      if (name == "bos_token") return token;
    }
    const Encoding added = tokenizer_.encode("", /*add_special_tokens=*/true);
    return added.ids.empty() ? "" : std::string(tokenizer_.id_to_token(added.ids.front()));
  }

  const jinja::Template& jinja_;
  const TemplateSource& source_;
  const TemplateSettings& settings_;
  const Tokenizer& tokenizer_;
  TemplateHabits found_;
};

}  // namespace

jinja::Rendering render_messages(const jinja::Template& jinja, std::span<const Turn> turns, const ContentForm& form,
                                 const TemplateSettings& settings, bool add_generation_prompt) {
  std::vector<std::pair<std::string, jinja::Value>> variables{
      {"messages", messages_of(turns, form, settings)},
      {"tools", jinja::Value::none()},
      {"documents", jinja::Value::none()},
      {"add_generation_prompt", jinja::Value(add_generation_prompt)}};
  for (const auto& [name, token] : settings.special_tokens) variables.emplace_back(name, jinja::Value::text(token));
  return jinja.render(variables, {.now = settings.now});
}

TemplateHabits habits_of(const jinja::Template& jinja, const TemplateSource& source, const TemplateSettings& settings,
                         const Tokenizer& tokenizer) {
  return Probe(jinja, source, settings, tokenizer).habits();
}

std::vector<Span> spans_of(const jinja::Rendering& rendering, int origin) {
  std::vector<Span> spans;
  for (const jinja::Run& run : rendering.runs) {
    if (run.origin == origin) spans.push_back({run.begin, run.end});
  }
  // What a template cut away may leave an empty place of its own.
  const auto is_empty = [](const Span& span) { return span.begin == span.end; };
  if (!std::ranges::all_of(spans, is_empty)) std::erase_if(spans, is_empty);
  return spans;
}

bool is_repeated(const jinja::Rendering& rendering, int origin, std::string_view text) {
  size_t written = 0;
  for (const Span& span : spans_of(rendering, origin)) written += span.end - span.begin;
  return !text.empty() && written >= 2 * text.size();
}

}  // namespace vlmtrain::text
