#include "text/jinja/syntax.h"

#include "text/jinja/callables.h"

namespace vlmtrain::text::jinja {

size_t Tree::number_of_name(std::string_view name) {
  const auto [place, is_new] = numbers.try_emplace(std::string(name), names.size());
  if (is_new) {
    names.emplace_back(name);
    const Method* function = find_function(name);
    functions.push_back(function == nullptr ? Value()
                                            : Value(std::shared_ptr<Object>(std::make_shared<Function>(
                                                  function->name, function->parameters, function->body))));
  }
  return place->second;
}

}  // namespace vlmtrain::text::jinja
