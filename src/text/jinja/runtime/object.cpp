#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

Value Object::call(Context& /*context*/, const Arguments& /*arguments*/) {
  throw evaluation_error("a value of type {} cannot be called", type_name());
}

std::optional<Value> Namespace::attribute(std::string_view name) {
  for (const auto& [key, value] : attributes_) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void Namespace::set(std::string_view name, Value value) {
  if (name.starts_with('_'))
    throw evaluation_error("a namespace cannot have the attribute \"{}\", with an underscore first", name);
  for (auto& [key, stored_value] : attributes_) {
    if (key == name) {
      stored_value = std::move(value);
      return;
    }
  }
  attributes_.emplace_back(name, std::move(value));
}

std::vector<Value> Namespace::release_values() {
  std::vector<Value> values;
  for (auto& [key, value] : attributes_) values.push_back(std::move(value));
  attributes_.clear();
  return values;
}

Value Function::call(Context& context, const Arguments& arguments) {
  return body_(context, self_, BoundArguments(name_, parameters_, arguments));
}

}  // namespace vlmtrain::text::jinja
