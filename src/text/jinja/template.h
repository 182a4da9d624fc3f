#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/runtime/tracked_text.h"
#include "text/jinja/runtime/value.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text::jinja {

struct SyntaxTree;

/// What a template writes, and which of its bytes came from which message text. In order, without overlap; an empty
/// run stands where an empty text was written and no run of that origin touches it. What no run covers is the
/// template's own.
struct Rendering {
  std::string text;
  std::vector<OriginSpan> origin_spans;
  std::vector<GeneratedSpan> generated{};  ///< what `generation` blocks wrote, in order, without overlap
};

struct RenderSettings {
  /// "2026-11-22" or "2026-11-22T10:30:00": what strftime_now formats. Empty: a template that asks for it fails.
  std::string now;
};

/// A template that cannot be rendered with what it is given. what() is "FILE:LINE: …".
class TemplateError : public UserError {
 public:
  TemplateError(std::string_view source_name, int line, std::string message, bool raised_by_template);
  /// Whether the template itself refused, with raise_exception.
  bool raised_by_template() const { return raised_by_template_; }
  /// Without file and line.
  const std::string& message() const { return message_; }

 private:
  std::string message_;
  bool raised_by_template_;
};

/// A chat template: the subset of Jinja2 that those of checkpoints use, as `transformers` configures it
/// (docs/chat-templates.md). Immutable; all methods are thread-safe.
class Template {
 public:
  /// Throws UserError (bad data) "FILE:LINE: …" for what is no template, and for filters, tests, statements, methods
  /// and functions that there are not, so that it is known before anything is trained.
  static Template parse(std::string_view source, std::string source_name);

  /// Throws TemplateError.
  Rendering render(const std::vector<std::pair<std::string, Value>>& variables, const RenderSettings& settings) const;

 private:
  explicit Template(std::shared_ptr<const SyntaxTree> tree) : tree_(std::move(tree)) {}
  std::shared_ptr<const SyntaxTree> tree_;
};

}  // namespace vlmtrain::text::jinja
