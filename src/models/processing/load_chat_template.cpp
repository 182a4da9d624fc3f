#include "models/processing/load_chat_template.h"

#include "vlmtrain/base/today.h"

namespace vlmtrain::models {

namespace {

using Templates = std::map<std::string, text::TemplateSource>;

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
      .after_image = family.after_image,
      .now = settings.chat_template_date.empty() ? current_date() : settings.chat_template_date};
  text::read_special_tokens(folder, tokenizer, template_settings);
  return {std::move(source), std::move(template_settings), tokenizer};
}

}  // namespace vlmtrain::models
