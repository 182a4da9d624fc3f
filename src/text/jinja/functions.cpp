#include <algorithm>
#include <array>

#include "text/jinja/callables.h"
#include "text/jinja/dates.h"
#include "text/jinja/operators.h"
#include "text/jinja/python_text.h"
#include "text/jinja/template.h"

namespace vlmtrain::text::jinja {
namespace {

/// The entries of dict(…) and namespace(…): those of a dict or of pairs, then those by name.
std::vector<std::pair<Value, Value>> entries_of(Context& context, const Bound& given) {
  const Arguments& all = given.all();
  std::vector<std::pair<Value, Value>> entries;
  if (all.positional.size() > 1) throw failure("dict and namespace take one value by place at most");
  if (!all.positional.empty() && all.positional[0].dict() != nullptr) {
    context.budget.made(all.positional[0].dict()->entries.size() * sizeof(Value) * 2);
    entries = all.positional[0].dict()->entries;
  } else if (!all.positional.empty()) {
    const auto all_items = items_of(all.positional[0], context.budget);
    for (const Value& pair : all_items->items) {
      const auto both = items_of(pair, context.budget);
      if (both->items.size() != 2) throw failure("dict needs pairs");
      context.budget.walk(entries.size() * 4);
      put(entries, both->items[0], both->items[1]);
    }
  }
  for (const auto& [key, value] : all.keyword) put(entries, Value::text(key), value);
  return entries;
}

Value dict_function(Context& context, const Value& /*self*/, const Bound& given) {
  return Value(std::make_shared<const Dict>(entries_of(context, given)));
}

Value namespace_function(Context& context, const Value& /*self*/, const Bound& given) {
  auto made = std::make_shared<Namespace>();
  for (auto& [key, value] : entries_of(context, given)) {
    if (key.text() == nullptr) continue;  // no template can ask for it
    made->set(key.text()->view(), std::move(value));
  }
  context.kept.push_back(made);
  return Value(std::shared_ptr<Object>(made));
}

Value range_function(Context& context, const Value& /*self*/, const Bound& given) {
  const bool from_zero = given[1] == nullptr;
  const int64_t begin = from_zero ? 0 : given.whole(0, 0);
  const int64_t end = from_zero ? given.whole(0, 0) : given.whole(1, 0);
  const int64_t step = given.whole(2, 1);
  if (step == 0) throw failure("range: the step is 0");
  // Unsigned, which holds every difference of two.
  const auto low = static_cast<uint64_t>(step > 0 ? begin : end);
  const auto high = static_cast<uint64_t>(step > 0 ? end : begin);
  const bool is_empty = step > 0 ? begin >= end : end >= begin;
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = is_empty ? 0 : (high - low - 1) / stride + 1;
  if (count > kMaxRangeItems) throw failure("range: more than {} numbers", kMaxRangeItems);
  context.budget.made(count * sizeof(Value));
  std::vector<Value> items;
  items.reserve(count);
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) items.push_back(Value(begin + i * step));
  return Value(std::make_shared<const Sequence>(Sequence::Form::kRange, std::move(items)));
}

Value raise_function(Context& context, const Value& /*self*/, const Bound& given) {
  Failure raised{str_of(*given[0], context.budget).bytes()};
  raised.raised = true;
  throw raised;
}

Value strftime_function(Context& context, const Value& /*self*/, const Bound& given) {
  return Value::text(format_date(context.settings.now, std::string(given.needed_text(0).view())));
}

/// Gives its values in turn.
class Cycler : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> values) : values_(std::move(values)) {
    for (const Value& value : values_) depth = std::max(depth, depth_around(value.depth()));
  }
  std::string_view type_name() const override { return "Cycler"; }

  std::optional<Value> attribute(std::string_view name) override {
    const auto bound = [&](Function::Body body) {
      return Value(std::shared_ptr<Object>(std::make_shared<Function>(
          "cycler", Parameters{""}, body, Value(std::shared_ptr<Object>(shared_from_this())))));
    };
    if (name == "current") return values_[at_];
    if (name == "next") return bound([](Context&, const Value& self, const Bound&) { return cycler_of(self).next(); });
    if (name == "reset")
      return bound([](Context&, const Value& self, const Bound&) { return cycler_of(self).reset(); });
    return std::nullopt;
  }

 private:
  static Cycler& cycler_of(const Value& value) { return static_cast<Cycler&>(*value.object()); }
  Value next() {
    const size_t given = at_;
    at_ = (at_ + 1) % values_.size();
    return values_[given];
  }
  Value reset() {
    at_ = 0;
    return Value::none();
  }

  std::vector<Value> values_;
  size_t at_ = 0;
};

/// Gives nothing at first, and then its separator.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) { depth = depth_around(separator_.depth()); }
  std::string_view type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  Value call(Context& /*context*/, const Arguments& arguments) override {
    if (!arguments.positional.empty() || !arguments.keyword.empty()) throw failure("a joiner takes no arguments");
    return std::exchange(used_, true) ? separator_ : Value::text("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value cycler_function(Context& /*context*/, const Value& /*self*/, const Bound& given) {
  if (given.all().positional.empty()) throw failure("a cycler needs values");
  return Value(std::shared_ptr<Object>(std::make_shared<Cycler>(given.all().positional)));
}

Value joiner_function(Context& /*context*/, const Value& /*self*/, const Bound& given) {
  return Value(std::shared_ptr<Object>(std::make_shared<Joiner>(given[0] != nullptr ? *given[0] : Value::text(", "))));
}

constexpr std::array kFunctions = {
    Method{"cycler", {"*"}, cycler_function},
    Method{"dict", {"*"}, dict_function},
    Method{"joiner", {"sep"}, joiner_function},
    Method{"namespace", {"*"}, namespace_function},
    Method{"raise_exception", {"message", 1}, raise_function},
    Method{"range", {"start stop step", 1}, range_function},
    Method{"strftime_now", {"format", 1}, strftime_function},
};

}  // namespace

std::span<const Method> functions() {
  return kFunctions;
}

}  // namespace vlmtrain::text::jinja
