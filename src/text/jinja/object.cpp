#include "text/jinja/object.h"

namespace vlmtrain::text::jinja {

Value Object::call(Context& /*context*/, const Arguments& /*arguments*/) {
  throw failure("a value of type {} cannot be called", type_name());
}

std::optional<Value> Namespace::attribute(std::string_view name) {
  for (const auto& [key, value] : attributes_) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void Namespace::set(std::string_view name, Value value) {
  if (name.starts_with('_'))
    throw failure("a namespace cannot have the attribute \"{}\", with an underscore first", name);
  for (auto& [key, old] : attributes_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  attributes_.emplace_back(name, std::move(value));
}

std::vector<Value> Namespace::emptied() {
  std::vector<Value> values;
  for (auto& [key, value] : attributes_) values.push_back(std::move(value));
  attributes_.clear();
  return values;
}

Value Function::call(Context& context, const Arguments& arguments) {
  return body_(context, self_, Bound(name_, parameters_, arguments));
}

}  // namespace vlmtrain::text::jinja
