#include "models/processing/chat_template.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::models {

namespace {

using Templates = std::map<std::string, text::TemplateSource>;

/// Returns the templates of the files in `folder`; if there are none, the template in config.json.
Templates read_checkpoint_templates(const std::filesystem::path& folder, const FamilyTemplate& family) {
  Templates templates = text::load_checkpoint_templates(folder);
  if (templates.empty() && !family.config_template.empty()) {
    templates.emplace("default",
                      text::TemplateSource{.jinja = family.config_template,
                                           .name = (folder / "config.json").string() + " (" + family.config_key + ")"});
  }
  return templates;
}

}  // namespace

text::ChatTemplate load_chat_template(const std::filesystem::path& folder, const text::Tokenizer& tokenizer,
                                      const ProcessorSettings& settings, const FamilyTemplate& family) {
  const Templates checkpoint_templates = read_checkpoint_templates(folder, family);
  Templates templates = checkpoint_templates;
  if (!settings.template_folder.empty()) {
    if (auto adapter_templates = text::load_checkpoint_templates(settings.template_folder); !adapter_templates.empty())
      templates = std::move(adapter_templates);
  }
  text::TemplateSource source = text::choose_template(settings.chat_template, templates, family.fallback);
  const auto checkpoint_default = checkpoint_templates.find("default");
  source.is_checkpoint_default =
      checkpoint_default != checkpoint_templates.end() && checkpoint_default->second.jinja == source.jinja;

  text::TemplateSettings template_settings{
      .image = family.image,
      .video = family.video,
      .text_after_image = family.text_after_image,
      .now = settings.chat_template_date.empty() ? get_current_date() : settings.chat_template_date};
  text::read_special_tokens(folder, tokenizer, template_settings);
  return {std::move(source), std::move(template_settings), tokenizer};
}

text::RenderedChat expand_media(const text::RenderedChat& chat, std::span<const std::string> expansions) {
  VLMTRAIN_CHECK(expansions.size() <= chat.media.size(), "{} images for {} placeholders in the text", expansions.size(),
                 chat.media.size());
  text::RenderedChat expanded;
  expanded.answers = chat.answers;
  // `copied_end` is the end of the part of chat.text that is already in `expanded`.
  size_t copied_end = 0;
  for (size_t medium = 0; medium < expansions.size(); ++medium) {
    const auto& [span, is_video] = chat.media[medium];
    const std::string& expansion = expansions[medium];
    expanded.text.append(chat.text, copied_end, span.begin - copied_end);
    const size_t begin = expanded.text.size();
    expanded.text += expansion;
    expanded.media.push_back({{begin, expanded.text.size()}, is_video});
    copied_end = span.end;
    const size_t length = span.end - span.begin;
    for (size_t i = 0; i < chat.answers.size(); ++i) {
      if (chat.answers[i].begin >= copied_end) expanded.answers[i].begin += expansion.size() - length;
      if (chat.answers[i].end >= copied_end) expanded.answers[i].end += expansion.size() - length;
    }
  }
  expanded.text.append(chat.text, copied_end);
  return expanded;
}

}  // namespace vlmtrain::models
