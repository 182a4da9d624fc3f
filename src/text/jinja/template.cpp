#include "text/jinja/template.h"

#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace vlmtrain::text::jinja {

TemplateError::TemplateError(std::string_view source_name, int line, std::string message, bool raised_by_template)
    : UserError(ExitCode::kBadData, fmt::format("{}:{}: {}", source_name, line, message)),
      message_(std::move(message)),
      raised_by_template_(raised_by_template) {}

Template Template::parse(std::string_view source, std::string source_name) {
  return Template(jinja::parse(source, std::move(source_name)));
}

Rendering Template::render(const std::vector<std::pair<std::string, Value>>& variables,
                           const RenderSettings& settings) const {
  const TrackedText text = Evaluator(*tree_, settings).render(variables);
  return {text.bytes(),
          {text.origin_spans().begin(), text.origin_spans().end()},
          {text.generated().begin(), text.generated().end()}};
}

}  // namespace vlmtrain::text::jinja
