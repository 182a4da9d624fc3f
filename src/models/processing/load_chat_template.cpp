#include "models/processing/load_chat_template.h"

#include "vlmtrain/base/today.h"

namespace vlmtrain::models {

namespace {

using Templates = std::map<std::string, text::TemplateSource>;

Templates own_templates(const std::filesystem::path& folder, const FamilyTemplate& family) {
  Templates own = text::templates_in(folder);
  if (own.empty() && !family.in_config.empty()) {
    own.emplace("default",
                text::TemplateSource{.jinja = family.in_config,
                                     .name = (folder / "config.json").string() + " (" + family.config_key + ")"});
  }
  return own;
}

}  // namespace

text::ChatTemplate load_chat_template(const std::filesystem::path& folder, const text::Tokenizer& tokenizer,
                                      const ProcessorSettings& settings, const FamilyTemplate& family) {
  const Templates of_checkpoint = own_templates(folder, family);
  Templates own = of_checkpoint;
  if (!settings.template_folder.empty()) {
    if (auto other = text::templates_in(settings.template_folder); !other.empty()) own = std::move(other);
  }
  text::TemplateSource source = text::choose_template(settings.chat_template, own, family.fallback);
  const auto saved = of_checkpoint.find("default");
  source.is_in_checkpoint = saved != of_checkpoint.end() && saved->second.jinja == source.jinja;

  text::TemplateSettings chosen{.image = family.image,
                                .video = family.video,
                                .after_image = family.after_image,
                                .now = settings.chat_template_date.empty() ? today() : settings.chat_template_date};
  text::read_special_tokens(folder, tokenizer, chosen);
  return {std::move(source), std::move(chosen), tokenizer};
}

}  // namespace vlmtrain::models
