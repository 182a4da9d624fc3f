#include "text/jinja/arguments.h"

#include <algorithm>

#include "text/jinja/limits.h"
#include "text/jinja/operators.h"

namespace vlmtrain::text::jinja {

Bound::Bound(std::string_view who, const Parameters& parameters, const Arguments& arguments)
    : who_(who), arguments_(&arguments) {
  if (parameters.names == "*") return;
  std::vector<std::string_view> names;
  for (std::string_view rest = parameters.names; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    names.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (arguments.positional.size() > names.size()) {
    throw failure("{} takes {} arguments at most, not {}", who, names.size(), arguments.positional.size());
  }
  values_.resize(names.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keyword) {
    const auto index = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (index == names.size()) throw failure("{} takes no argument \"{}\"", who, name);
    if (values_[index] != nullptr) throw failure("{} is given the argument \"{}\" twice", who, name);
    values_[index] = &value;
  }
  for (size_t i = 0; i < static_cast<size_t>(parameters.required); ++i) {
    if (values_[i] == nullptr) throw failure("{} lacks the argument \"{}\"", who, names[i]);
  }
}

const Value* Bound::given(size_t index) const {
  const Value* value = (*this)[index];
  return value != nullptr && value->is_none() ? nullptr : value;
}

bool Bound::flag(size_t index, bool fallback) const {
  const Value* value = (*this)[index];
  return value == nullptr ? fallback : is_true(*value);
}

int64_t Bound::whole(size_t index, int64_t fallback) const {
  const Value* value = (*this)[index];
  if (value == nullptr) return fallback;
  int64_t out = 0;
  if (!value->is_whole(out)) throw failure("{}: a whole number is needed, not {}", who_, value->type_name());
  return out;
}

const Text* Bound::text(size_t index) const {
  const Value* value = given(index);
  if (value == nullptr) return nullptr;
  if (value->text() == nullptr) throw failure("{}: a text is needed, not {}", who_, value->type_name());
  return value->text();
}

const Text& Bound::needed_text(size_t index) const {
  const Text* found = text(index);
  if (found == nullptr) throw failure("{}: a text is needed, not None", who_);
  return *found;
}

}  // namespace vlmtrain::text::jinja
