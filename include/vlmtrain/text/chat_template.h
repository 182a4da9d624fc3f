#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/text/conversation.h"

namespace vlmtrain::text {

/// Bytes [begin, end) of a text.
struct Span {
  size_t begin;
  size_t end;
  bool operator==(const Span&) const = default;
};

/// A conversation as the model reads it.
struct RenderedChat {
  std::string text;
  /// One for each assistant turn, in order: what the model has to produce after the generation prompt, that is the
  /// answer, a space before it where the template has one, and the end-of-turn token. Nothing of the prompt.
  std::vector<Span> answers;
};

/// How a family of checkpoints writes conversations: what their Jinja chat templates do, as a table of strings.
///
/// Images. A turn's text is cut at its marks into blocks, images and texts, as users of `transformers` do:
/// - Templates that keep images in place (smolvlm, qwen2_vl, chatml, question_answer): line breaks directly after the
/// marks that open a
///   turn are dropped, since LLaVA's data writes "<image>\nQuestion" for the blocks [image, "Question"]. All other text
///   stays as it is.
/// - Templates with images first (llava_1_5, llava_qwen, llava_v1, mistral_instruct), as LLaVA's own code does: all
/// marks of the
///   turn move to its front, each followed by a line break, and white space around the remaining text is dropped. The
///   text block is written even if it is empty.
///
/// In the rendered text each image is one `image_text()`, which the family's processor expands.
///
/// Immutable; all methods are thread-safe.
class ChatTemplate {
 public:
  /// A template by name. Throws UserError (usage) that lists the names if there is none.
  static const ChatTemplate& find(std::string_view name);
  static std::vector<std::string_view> names();

  std::string_view name() const;
  /// The text that ends an answer (such as "<end_of_utterance>"). Empty for llava_1_5, whose Jinja writes none: train
  /// with llava_v1 instead, or the model does not learn to stop.
  std::string_view end_of_turn() const;
  /// What stands for an image in the rendered text.
  std::string_view image_text() const;

  /// Renders `turns`; with `add_generation_prompt` the text ends where the next answer begins. Text that a tokenizer's
  /// post-processor adds (such as `<s>`) is not part of it. Throws UserError (bad data) for no turns, or a system turn
  /// where the template has no place for one.
  RenderedChat render(std::span<const Turn> turns, bool add_generation_prompt) const;

  struct Table;

 private:
  explicit ChatTemplate(const Table& table) : table_(&table) {}
  const Table* table_;  // of static storage
};

}  // namespace vlmtrain::text
