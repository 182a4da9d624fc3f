#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/checkpoint_templates.h"

namespace vlmtrain::models {

/// What a family says of its chat templates.
struct FamilyTemplate {
  std::string_view fallback;  ///< of the table, for a checkpoint without one
  text::MediaPlaceholder image{std::string(text::kImagePlaceholder), std::string(text::kImagePlaceholder)};
  text::MediaPlaceholder video{};
  std::string after_image = "\n";  ///< as TemplateSettings::after_image
  std::string config_template{};   ///< a template that stands in config.json itself
  std::string config_key{};        ///< where
};

/// The chat template that `settings` ask for, of the checkpoint in `folder`.
text::ChatTemplate load_chat_template(const std::filesystem::path& folder, const text::Tokenizer& tokenizer,
                                      const ProcessorSettings& settings, const FamilyTemplate& family);

/// Puts what stands for each image or video in the model's text in its place, in order, and moves the answers' spans
/// along. REQUIRES: no more `expansions` than the chat has media; further ones stay as they are.
text::RenderedChat expand_images(const text::RenderedChat& chat, std::span<const std::string> expansions);

}  // namespace vlmtrain::models
