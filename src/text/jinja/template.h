#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/value.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text::jinja {

struct SyntaxTree;

/// The output of a template, with the origin of its bytes. All spans are byte ranges of `text`.
struct RenderedText {
  std::string text;
  /// The bytes that come from input texts with an origin, in order and without overlap. The
  /// template itself wrote all other bytes. An empty span marks the position of an empty text,
  /// unless another span of the same origin touches it.
  std::vector<OriginSpan> origin_spans;
  std::vector<GeneratedSpan> generated_spans{};  ///< output of `generation` blocks, in order and without overlap
};

/// An error during the rendering of a template. what() is "FILE:LINE: …".
class TemplateError : public UserError {
 public:
  TemplateError(std::string_view source_name, int line, std::string message, bool is_raised_by_template);
  /// Returns whether the template itself raised the error with raise_exception().
  bool is_raised_by_template() const { return is_raised_by_template_; }
  /// Returns the message without file and line.
  const std::string& message() const { return message_; }

 private:
  std::string message_;
  bool is_raised_by_template_;
};

/// A chat template in the subset of Jinja2 that checkpoints use, configured as in `transformers`
/// (docs/reference/chat-templates.md). Immutable and thread-safe.
class Template {
 public:
  /// Parses `source`. `source_name` is FILE in messages. Throws UserError (bad data) "FILE:LINE: …"
  /// for syntax errors, and for unknown filters, tests, statements, methods and functions, so that
  /// these are reported before training.
  static Template parse(std::string_view source, std::string source_name);

  /// Renders the template with these variables. Variables that it does not use are ignored. Throws
  /// TemplateError.
  RenderedText render(const std::vector<std::pair<std::string, Value>>& variables,
                      const RenderSettings& settings) const;

 private:
  explicit Template(std::shared_ptr<const SyntaxTree> tree) : tree_(std::move(tree)) {}
  std::shared_ptr<const SyntaxTree> tree_;
};

}  // namespace vlmtrain::text::jinja
