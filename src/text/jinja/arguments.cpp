#include "text/jinja/arguments.h"

#include <algorithm>

#include "text/jinja/runtime/budget.h"
#include "text/jinja/runtime/operators.h"

namespace vlmtrain::text::jinja {

BoundArguments::BoundArguments(std::string_view callee_name, const Parameters& parameters, const Arguments& arguments)
    : callee_name_(callee_name), arguments_(&arguments) {
  if (parameters.names == "*") return;
  std::vector<std::string_view> names;
  for (std::string_view remaining = parameters.names; !remaining.empty();) {
    const size_t end = std::min(remaining.find(' '), remaining.size());
    names.push_back(remaining.substr(0, end));
    remaining.remove_prefix(std::min(end + 1, remaining.size()));
  }
  if (arguments.positional.size() > names.size()) {
    throw evaluation_error("{} takes {} arguments at most, not {}", callee_name, names.size(),
                           arguments.positional.size());
  }
  values_.resize(names.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keyword) {
    const auto index = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (index == names.size()) throw evaluation_error("{} takes no argument \"{}\"", callee_name, name);
    if (values_[index] != nullptr) throw evaluation_error("{} is given the argument \"{}\" twice", callee_name, name);
    values_[index] = &value;
  }
  for (size_t i = 0; i < static_cast<size_t>(parameters.num_required); ++i) {
    if (values_[i] == nullptr) throw evaluation_error("{} lacks the argument \"{}\"", callee_name, names[i]);
  }
}

const Value* BoundArguments::value_or_null(size_t index) const {
  const Value* value = (*this)[index];
  return value != nullptr && value->is_none() ? nullptr : value;
}

bool BoundArguments::boolean(size_t index, bool fallback) const {
  const Value* value = (*this)[index];
  return value == nullptr ? fallback : is_true(*value);
}

int64_t BoundArguments::integer(size_t index, int64_t fallback) const {
  const Value* value = (*this)[index];
  if (value == nullptr) return fallback;
  int64_t out = 0;
  if (!value->to_integer(out))
    throw evaluation_error("{}: a whole number is needed, not {}", callee_name_, value->type_name());
  return out;
}

const Text* BoundArguments::text(size_t index) const {
  const Value* value = value_or_null(index);
  if (value == nullptr) return nullptr;
  if (value->text() == nullptr)
    throw evaluation_error("{}: a text is needed, not {}", callee_name_, value->type_name());
  return value->text();
}

const Text& BoundArguments::required_text(size_t index) const {
  const Text* text_value = text(index);
  if (text_value == nullptr) throw evaluation_error("{}: a text is needed, not None", callee_name_);
  return *text_value;
}

}  // namespace vlmtrain::text::jinja
