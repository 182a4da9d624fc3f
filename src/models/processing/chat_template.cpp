#include "models/processing/chat_template.h"

#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::models {

namespace {

using TemplateMap = std::map<std::string, text::TemplateSource>;

/// Returns the templates of the files in `folder`; if there are none, the template in config.json.
TemplateMap read_checkpoint_templates(const std::filesystem::path& folder, const FamilyTemplateSettings& family) {
  TemplateMap templates = text::load_checkpoint_templates(folder);
  if (templates.empty() && !family.config_template.empty()) {
    templates.emplace("default", text::TemplateSource{.jinja_source = family.config_template,
                                                      .name = (folder / "config.json").string() + " (" +
                                                              family.config_template_key + ")"});
  }
  return templates;
}

}  // namespace

text::ChatTemplate load_chat_template(const std::filesystem::path& folder, const text::Tokenizer& tokenizer,
                                      const ProcessorSettings& settings, const FamilyTemplateSettings& family) {
  const TemplateMap checkpoint_templates = read_checkpoint_templates(folder, family);
  TemplateMap templates = checkpoint_templates;
  if (!settings.chat_template_folder.empty()) {
    if (auto adapter_templates = text::load_checkpoint_templates(settings.chat_template_folder);
        !adapter_templates.empty())
      templates = std::move(adapter_templates);
  }
  text::TemplateSource source = text::choose_template(settings.chat_template, templates, family.fallback);
  const auto checkpoint_default_template = checkpoint_templates.find("default");
  source.is_checkpoint_default = checkpoint_default_template != checkpoint_templates.end() &&
                                 checkpoint_default_template->second.jinja_source == source.jinja_source;

  text::TemplateSettings template_settings{
      .image_markup = family.image_markup,
      .video_markup = family.video_markup,
      .text_after_leading_image = family.text_after_leading_image,
      .current_time = settings.chat_template_date.empty() ? get_current_date() : settings.chat_template_date};
  text::read_special_tokens(folder, tokenizer, template_settings);
  return {std::move(source), std::move(template_settings), tokenizer};
}

text::RenderedChat replace_spans(const text::RenderedChat& chat, std::span<const text::TextSpan> spans,
                                 std::span<const std::string> texts) {
  text::RenderedChat result = chat;
  result.text.clear();
  size_t copied_end = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto [begin, end] = spans[i];
    result.text.append(chat.text, copied_end, begin - copied_end);
    result.text += texts[i];
    copied_end = end;
    const size_t added = texts[i].size() - (end - begin);  // wraps around for a shorter text
    const auto move_span = [&](text::TextSpan& span, const text::TextSpan& original) {
      if (original.begin >= end) span.begin += added;
      if (original.end >= end) span.end += added;
    };
    for (size_t answer = 0; answer < chat.answers.size(); ++answer)
      move_span(result.answers[answer], chat.answers[answer]);
    for (size_t medium = 0; medium < chat.media.size(); ++medium)
      move_span(result.media[medium].span, chat.media[medium].span);
  }
  result.text.append(chat.text, copied_end);
  return result;
}

text::RenderedChat expand_media(const text::RenderedChat& chat, std::span<const std::string> expansions) {
  VLMTRAIN_CHECK(expansions.size() <= chat.media.size(), "{} images for {} placeholders in the text", expansions.size(),
                 chat.media.size());
  std::vector<text::TextSpan> spans;
  spans.reserve(expansions.size());
  for (const text::MediaSpan& medium : std::span(chat.media).first(expansions.size())) spans.push_back(medium.span);
  return replace_spans(chat, spans, expansions);
}

}  // namespace vlmtrain::models
