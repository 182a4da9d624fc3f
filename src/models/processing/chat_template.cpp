#include "models/processing/chat_template.h"

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

text::RenderedChat expand_media(const text::RenderedChat& chat, std::span<const std::string> expansions) {
  VLMTRAIN_CHECK(expansions.size() <= chat.media.size(), "{} images for {} placeholders in the text", expansions.size(),
                 chat.media.size());
  text::RenderedChat expanded_chat;
  expanded_chat.answers = chat.answers;
  // `copied_end` is the end of the part of chat.text that is already in `expanded_chat`.
  size_t copied_end = 0;
  for (size_t medium = 0; medium < expansions.size(); ++medium) {
    const auto& [span, is_video] = chat.media[medium];
    const std::string& expansion = expansions[medium];
    expanded_chat.text.append(chat.text, copied_end, span.begin - copied_end);
    const size_t begin = expanded_chat.text.size();
    expanded_chat.text += expansion;
    expanded_chat.media.push_back({{begin, expanded_chat.text.size()}, is_video});
    copied_end = span.end;
    const size_t length = span.end - span.begin;
    for (size_t i = 0; i < chat.answers.size(); ++i) {
      if (chat.answers[i].begin >= copied_end) expanded_chat.answers[i].begin += expansion.size() - length;
      if (chat.answers[i].end >= copied_end) expanded_chat.answers[i].end += expansion.size() - length;
    }
  }
  expanded_chat.text.append(chat.text, copied_end);
  return expanded_chat;
}

}  // namespace vlmtrain::models
