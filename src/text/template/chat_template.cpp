#include "vlmtrain/text/chat_template.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "text/template/rendered_chat.h"
#include "text/template/template_probe.h"
#include "text/unicode/unicode_classes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::text {
namespace {

/// Returns `jinja_source` with `block` in place of each `placeholder`.
std::string replace_placeholder(std::string jinja_source, std::string_view placeholder, const std::string& block) {
  for (size_t pos = jinja_source.find(placeholder); pos != std::string::npos;
       pos = jinja_source.find(placeholder, pos + block.size())) {
    jinja_source.replace(pos, placeholder.size(), block);
  }
  return jinja_source;
}

/// Returns a built-in template with the markup of the model family for images and videos. Returns
/// other templates unchanged.
TemplateSource insert_family_markup(TemplateSource source, const TemplateSettings& settings) {
  if (source.end_of_turn_token.data() == nullptr) return source;  // not a built-in template
  if (settings.image_markup.block != kImagePlaceholder) {
    source.jinja_source =
        replace_placeholder(std::move(source.jinja_source), kImagePlaceholder, settings.image_markup.block);
  }
  if (!settings.video_markup.block.empty() && settings.video_markup.block != kVideoPlaceholder) {
    source.jinja_source =
        replace_placeholder(std::move(source.jinja_source), kVideoPlaceholder, settings.video_markup.block);
  }
  return source;
}

/// Returns the end of token `i`: the next greater start, because the byte tokens of one character
/// may share a start.
size_t find_token_end(const Encoding& encoding, size_t i, size_t text_size) {
  for (size_t next = i + 1; next < encoding.starts.size(); ++next) {
    if (encoding.starts[next] > encoding.starts[i]) return encoding.starts[next];
  }
  return text_size;
}

/// Calls `visit(token, answer)` with the indices of each label token and of its answer.
template <class Visit>
void visit_labels(const Encoding& encoding, std::string_view text, std::span<const TextSpan> answers,
                  const Visit& visit) {
  for (size_t i = 1; i < answers.size(); ++i) {
    VLMTRAIN_CHECK(answers[i - 1].end <= answers[i].begin, "answers {} and {} overlap", i - 1, i);
  }
  size_t next_answer_index = 0;
  for (size_t i = 0; i < encoding.starts.size(); ++i) {
    while (next_answer_index < answers.size() && answers[next_answer_index].end <= encoding.starts[i])
      ++next_answer_index;
    if (next_answer_index == answers.size()) break;
    const size_t start = encoding.starts[i], begin = answers[next_answer_index].begin;
    const bool reaches_into_answer = start < begin && start + count_leading_white_space(text.substr(start)) >= begin &&
                                     find_token_end(encoding, i, text.size()) > begin;
    if (begin <= start || reaches_into_answer) visit(i, next_answer_index);
  }
}

}  // namespace

/// A parsed template with its special tokens and the traits that the probe found.
struct ChatTemplate::Impl {
  Impl(TemplateSource source_, TemplateSettings settings_, const Tokenizer& tokenizer)
      : source(insert_family_markup(std::move(source_), settings_)),
        settings(std::move(settings_)),
        jinja_template(jinja::Template::parse(source.jinja_source, source.name)),
        traits(probe_template(jinja_template, source, settings, tokenizer)) {}

  TemplateSource source;
  TemplateSettings settings;
  jinja::Template jinja_template;
  TemplateTraits traits;
};

ChatTemplate::ChatTemplate(TemplateSource source, TemplateSettings settings, const Tokenizer& tokenizer)
    : impl_(std::make_shared<const Impl>(std::move(source), std::move(settings), tokenizer)) {}

const TemplateSource& ChatTemplate::source() const {
  return impl_->source;
}
const TemplateSettings& ChatTemplate::settings() const {
  return impl_->settings;
}
std::string_view ChatTemplate::end_of_turn_token() const {
  return impl_->traits.end_of_turn_token;
}
bool ChatTemplate::omits_last_end_of_turn() const {
  return impl_->traits.omits_last_end_of_turn;
}
bool ChatTemplate::writes_bos_token() const {
  return impl_->traits.writes_bos_token;
}

std::string ChatTemplate::describe() const {
  std::string text =
      fmt::format("chat template {}{}; ", impl_->source.name,
                  impl_->source.is_checkpoint_default ? ", the checkpoint's own"
                                                      : ", which saved checkpoints carry as chat_template.jinja");
  text +=
      impl_->traits.omits_last_end_of_turn
          ? fmt::format("it writes nothing after the last answer, so {} is appended", impl_->traits.end_of_turn_token)
          : fmt::format("an answer ends with {}", impl_->traits.end_of_turn_token);
  for (const std::string& note : impl_->traits.notes) text += "; " + note;
  return text;
}

RenderedChat ChatTemplate::render(std::span<const Turn> turns, bool add_generation_prompt,
                                  std::span<const io::TemplateValue> variables) const {
  if (turns.empty()) throw data_error("A conversation has no turns; give it a question and an answer, or drop it");
  const auto render_turns = [&](size_t num_turns, bool as_prompt) {
    return render_messages(impl_->jinja_template, turns.first(num_turns), impl_->traits.content_format, impl_->settings,
                           as_prompt, variables);
  };
  const auto render_text = [&](size_t num_turns, bool as_prompt) { return render_turns(num_turns, as_prompt).text; };
  return build_rendered_chat(render_turns(turns.size(), add_generation_prompt), turns,
                             /*ends_with_answer=*/!add_generation_prompt, impl_->traits, impl_->settings, variables,
                             render_text);
}

std::vector<char> compute_label_mask(const Encoding& encoding, std::string_view text,
                                     std::span<const TextSpan> answers) {
  std::vector<char> label_mask(encoding.ids.size(), 0);
  visit_labels(encoding, text, answers, [&](size_t token, size_t /*answer*/) { label_mask[token] = 1; });
  return label_mask;
}

std::vector<float> compute_label_weights(const Encoding& encoding, std::string_view text,
                                         std::span<const TextSpan> answers, std::span<const float> weights) {
  if (weights.empty()) return {};
  VLMTRAIN_CHECK(weights.size() == answers.size(), "{} weights for {} answers", weights.size(), answers.size());
  std::vector<float> label_weights(encoding.ids.size(), 0);
  visit_labels(encoding, text, answers, [&](size_t token, size_t answer) { label_weights[token] = weights[answer]; });
  return label_weights;
}

}  // namespace vlmtrain::text
