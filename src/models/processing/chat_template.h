#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/template_source.h"

namespace vlmtrain::models {

/// The chat template settings of a family.
struct FamilyTemplate {
  std::string_view fallback;  ///< name in the table, for a checkpoint without a template
  text::MediaMarkup image{std::string(text::kImagePlaceholder), std::string(text::kImagePlaceholder)};
  text::MediaMarkup video{};
  std::string after_image = "\n";  ///< as TemplateSettings::after_image
  std::string config_template{};   ///< a template inside config.json
  std::string config_key{};        ///< its key in config.json
};

/// Returns the chat template of the checkpoint in `folder` that `settings` select.
text::ChatTemplate load_chat_template(const std::filesystem::path& folder, const text::Tokenizer& tokenizer,
                                      const ProcessorSettings& settings, const FamilyTemplate& family);

/// Replaces the media marks of a chat by `expansions`, in order, and moves the spans of the answers
/// accordingly. Marks without an expansion stay. REQUIRES: the chat has at least as many media as
/// expansions.
text::RenderedChat expand_images(const text::RenderedChat& chat, std::span<const std::string> expansions);

}  // namespace vlmtrain::models
