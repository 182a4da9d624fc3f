#include "text/jinja/syntax/syntax.h"

#include "text/jinja/builtins/builtins.h"

namespace vlmtrain::text::jinja {

size_t SyntaxTree::intern_name(std::string_view name) {
  const auto [entry, is_inserted] = name_indices.try_emplace(std::string(name), names.size());
  if (is_inserted) {
    names.emplace_back(name);
    const Builtin* builtin = find_function(name);
    functions.push_back(builtin == nullptr ? Value()
                                           : Value(std::shared_ptr<Object>(std::make_shared<Function>(
                                                 builtin->name, builtin->parameters, builtin->body))));
  }
  return entry->second;
}

}  // namespace vlmtrain::text::jinja
