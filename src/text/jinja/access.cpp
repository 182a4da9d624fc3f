#include "text/jinja/access.h"

#include <algorithm>

#include "text/jinja/letters.h"
#include "text/jinja/methods.h"
#include "text/jinja/numbers.h"
#include "text/jinja/python_text.h"

namespace vlmtrain::text::jinja {
namespace {

void refuse_undefined(const Value& value) {
  if (value.is_undefined()) throw Failure{value.why_undefined()};
}

std::optional<Value> item_at(const Value& value, int64_t index) {
  const bool is_text = value.text() != nullptr;
  const auto count = static_cast<int64_t>(is_text ? value.text()->length : value.sequence()->items.size());
  if (index < 0) index += count;
  if (index < 0 || index >= count) return std::nullopt;
  if (!is_text) return value.sequence()->items[static_cast<size_t>(index)];
  const Text& text = *value.text();
  const size_t at = text.ascii ? static_cast<size_t>(index) : place_of(text.view(), static_cast<size_t>(index));
  return Value::text(text.marked.slice(at, next_character(text.view(), at)));
}

/// What obj[key] gives, or nothing where Python raises.
std::optional<Value> item_of(const Value& value, const Value& key, Budget& budget) {
  int64_t index = 0;
  if (value.dict() != nullptr) {
    budget.walk(value.dict()->entries.size());
    const Value* found = value.dict()->find(key);
    return found != nullptr ? std::optional<Value>(*found) : std::nullopt;
  }
  const bool indexed = value.text() != nullptr || (value.sequence() != nullptr && value.sequence()->can_index());
  if (!indexed || !key.is_whole(index)) return std::nullopt;
  if (value.text() != nullptr && !value.text()->ascii) budget.walk(value.text()->view().size());
  return item_at(value, index);
}

Value no_attribute(const Value& value, std::string_view name) {
  const std::string type = value.is_none()             ? "None"
                           : value.object() != nullptr ? std::string(value.type_name())
                                                       : std::string(value.type_name()) + " object";
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", type, name));
}

std::optional<Value> own_attribute(const Value& value, std::string_view name) {
  if (value.object() != nullptr) return value.object()->attribute(name);
  if (value.sequence() != nullptr && value.sequence()->is_group) {
    if (name == "grouper") return value.sequence()->items[0];
    if (name == "list") return value.sequence()->items[1];
  }
  return method_of(value, name);
}

/// Where a slice begins and ends, and how many items are in it: Python's slice.indices().
struct Cut {
  int64_t begin;
  int64_t step;
  int64_t count;
};

Cut cut_of(int64_t size, const Value& begin, const Value& end, const Value& step) {
  const auto whole = [](const Value& bound, int64_t fallback) {
    int64_t out = fallback;
    if (!bound.is_none() && !bound.is_whole(out)) {
      refuse_undefined(bound);
      throw failure("a slice needs whole numbers, not {}", bound.type_name());
    }
    return out;
  };
  const int64_t by = std::max(whole(step, 1), -INT64_MAX);
  if (by == 0) throw failure("a slice cannot have the step 0");
  const auto clamped = [&](const Value& bound, int64_t fallback) {
    if (bound.is_none()) return fallback;
    int64_t at = whole(bound, 0);
    if (at < 0) at = at < -size ? -1 : at + size;
    if (at < 0) return by < 0 ? int64_t{-1} : int64_t{0};
    return std::min(at, by < 0 ? size - 1 : size);
  };
  const int64_t from = clamped(begin, by < 0 ? size - 1 : 0);
  const int64_t to = clamped(end, by < 0 ? -1 : size);
  int64_t count = 0;
  if (by > 0 && from < to) count = (to - from - 1) / by + 1;
  if (by < 0 && to < from) count = (from - to - 1) / -by + 1;
  return {from, by, count};
}

Value slice_of_text(const Text& text, const Cut& cut, Budget& budget) {
  const std::string_view bytes = text.view();
  if (!text.ascii) budget.walk(bytes.size());
  const auto place = [&](int64_t index) {
    return text.ascii ? static_cast<size_t>(index) : place_of(bytes, static_cast<size_t>(index));
  };
  if (cut.step == 1 || cut.count == 0) {
    // An empty one is where it begins, which may be before or past the text.
    const size_t begin = place(std::clamp<int64_t>(cut.begin, 0, static_cast<int64_t>(text.length)));
    const size_t end = cut.count == 0 ? begin : place(cut.begin + cut.count);
    budget.made(end - begin);
    return Value::text(text.marked.slice(begin, end));
  }
  MarkedText out;
  size_t at = place(cut.begin);
  for (int64_t i = 0;;) {
    out.append(text.marked, at, next_character(bytes, at));
    if (++i == cut.count) break;
    for (int64_t move = 0; move < cut.step; ++move) at = next_character(bytes, at);
    for (int64_t move = 0; move > cut.step; --move) at = previous_character(bytes, at);
  }
  budget.made(out.size());
  return Value::text(std::move(out));
}

}  // namespace

Value get_attribute(const Value& value, std::string_view name) {
  refuse_undefined(value);
  if (auto attribute = own_attribute(value, name)) return *attribute;
  if (value.dict() != nullptr) {
    if (const Value* found = value.dict()->find(name)) return *found;
  }
  return no_attribute(value, name);
}

Value get_item(const Value& value, const Value& key, Budget& budget) {
  refuse_undefined(value);
  if (auto item = item_of(value, key, budget)) return *item;
  if (key.text() != nullptr) {
    if (auto attribute = own_attribute(value, key.text()->view())) return *attribute;
    return no_attribute(value, key.text()->view());
  }
  MarkedText shown;
  if (key.is_undefined() || key.is_none() || number_of(key)) append_repr(shown, key, budget);
  return Value::undefined(fmt::format("{} has no element {}", value.type_name(), shown.bytes()));
}

Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  refuse_undefined(value);
  if (value.text() != nullptr) {
    return slice_of_text(*value.text(), cut_of(static_cast<int64_t>(value.text()->length), begin, end, step), budget);
  }
  if (value.sequence() == nullptr || !value.sequence()->can_index()) {
    throw failure("a value of type {} has no slices", value.type_name());
  }
  const std::vector<Value>& items = value.sequence()->items;
  const Cut cut = cut_of(static_cast<int64_t>(items.size()), begin, end, step);
  budget.made(static_cast<size_t>(cut.count) * sizeof(Value));
  std::vector<Value> part;
  part.reserve(static_cast<size_t>(cut.count));
  for (int64_t i = 0; i < cut.count; ++i) part.push_back(items[static_cast<size_t>(cut.begin + i * cut.step)]);
  return Value(std::make_shared<const Sequence>(value.sequence()->form, std::move(part)));
}

Value get_path(const Value& value, const Value& path, Budget& budget) {
  if (path.is_none()) return value;
  if (path.text() == nullptr) return get_item(value, path, budget);
  Value found = value;
  for (std::string_view rest = path.text()->view();;) {
    const size_t end = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, end);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    const auto number = is_number ? parse_whole(part, 10) : std::nullopt;
    found = get_item(found, number ? Value(*number) : Value::text(std::string(part)), budget);
    if (end == rest.size()) return found;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace vlmtrain::text::jinja
