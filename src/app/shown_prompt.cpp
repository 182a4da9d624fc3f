#include "app/shown_prompt.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/report/marked_chat.h"

namespace vlmtrain::app {

namespace {

data::Sample make_prompt_sample(const models::Processor& processor, const io::Record& record, bool as_prompt) {
  return as_prompt ? processor.outline_prompt(record, 0) : processor.process_headers(record, 0);
}

}  // namespace

std::string format_prompt(const models::Processor& processor, const io::Record& record, bool as_prompt) {
  const text::RenderedChat chat = processor.render(record, as_prompt);
  const std::string text = report::mark_answers(chat);
  const data::Sample sample = make_prompt_sample(processor, record, as_prompt);
  std::string notices;
  for (const io::Notice& notice : chat.notices) notices += fmt::format("{}: {}\n", notice.kind, notice.example);
  return fmt::format("{}\n\n{} tokens, {} of them of images and videos; {} are learnt{}\n{}\n{}",
                     isatty(STDOUT_FILENO) == 1 ? to_printable_lines(text) : text, sample.tokens(),
                     sample.image_token_positions.size(), sample.label_tokens(),
                     as_prompt ? ", since this is what is asked" : ", those between ⟦ and ⟧",
                     processor.chat_template().description(), notices);
}

std::string format_prompt_json(const models::Processor& processor, const io::Record& record, bool as_prompt) {
  const text::RenderedChat chat = processor.render(record, as_prompt);
  const data::Sample sample = make_prompt_sample(processor, record, as_prompt);
  auto spans = nlohmann::ordered_json::array();
  for (const text::Span& answer : chat.answers) spans.push_back({answer.begin, answer.end});
  const text::ChatTemplate& chat_template = processor.chat_template();
  return io::to_json_string(
      nlohmann::ordered_json{{"text", chat.text},
                             {"label_spans", spans},
                             {"token_ids", sample.token_ids},
                             {"is_label", std::vector<int>(sample.is_label.begin(), sample.is_label.end())},
                             {"image_tokens", sample.image_token_positions.size()},
                             {"chat_template", chat_template.source().name},
                             {"end_of_turn", chat_template.end_of_turn()}});
}

}  // namespace vlmtrain::app
