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
struct FamilyTemplateSettings {
  /// Name of the built-in template for a checkpoint without one, as in text::choose_template().
  std::string_view fallback;
  text::MediaMarkup image_markup{std::string(text::kImagePlaceholder), std::string(text::kImagePlaceholder)};
  text::MediaMarkup video_markup{};
  std::string text_after_leading_image = "\n";  ///< as text::TemplateSettings::text_after_leading_image
  std::string config_template{};                ///< template that config.json contains; empty: none
  std::string config_template_key{};            ///< its key in config.json
};

/// Returns the chat template for the checkpoint in `folder`. Candidates are the templates of
/// settings.chat_template_folder, else those of `folder`; settings.chat_template selects one, as in
/// text::choose_template(). Throws UserError: kUsage for an unknown selection, kBadData for invalid
/// files.
text::ChatTemplate load_chat_template(const std::filesystem::path& folder, const text::Tokenizer& tokenizer,
                                      const ProcessorSettings& settings, const FamilyTemplateSettings& family);

/// Returns `chat` with the text of `spans` replaced by `texts`, and the spans of media and answers
/// moved accordingly. REQUIRES: the spans are in order, do not overlap, and are within or outside of
/// each answer; each media placeholder is one of the spans or outside of them.
text::RenderedChat replace_spans(const text::RenderedChat& chat, std::span<const text::TextSpan> spans,
                                 std::span<const std::string> texts);

/// Returns `chat` with its media placeholders replaced by `expansions`, in order, and the spans of
/// media and answers moved accordingly. Placeholders after the last expansion are kept. REQUIRES:
/// the chat has at least as many media as expansions.
text::RenderedChat expand_media(const text::RenderedChat& chat, std::span<const std::string> expansions);

}  // namespace vlmtrain::models
