#include <algorithm>
#include <array>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/dates.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"
#include "text/jinja/template.h"

namespace vlmtrain::text::jinja {
namespace {

/// The entries of dict(…) and namespace(…): those of a dict or of pairs, then those by name.
std::vector<std::pair<Value, Value>> collect_entries(Context& context, const BoundArguments& args) {
  const Arguments& arguments = args.arguments();
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) throw evaluation_error("dict and namespace take one value by place at most");
  if (!arguments.positional.empty() && arguments.positional[0].dict() != nullptr) {
    context.budget.charge_allocation(arguments.positional[0].dict()->entries.size() * sizeof(Value) * 2);
    entries = arguments.positional[0].dict()->entries;
  } else if (!arguments.positional.empty()) {
    const auto items = to_sequence(arguments.positional[0], context.budget);
    for (const Value& pair : items->items) {
      const auto pair_items = to_sequence(pair, context.budget);
      if (pair_items->items.size() != 2) throw evaluation_error("dict needs pairs");
      context.budget.charge_scan(entries.size() * 4);
      insert_or_assign(entries, pair_items->items[0], pair_items->items[1]);
    }
  }
  for (const auto& [key, value] : arguments.keyword) insert_or_assign(entries, Value::text(key), value);
  return entries;
}

Value dict_function(Context& context, const Value& /*self*/, const BoundArguments& args) {
  return Value(std::make_shared<const Dict>(collect_entries(context, args)));
}

Value namespace_function(Context& context, const Value& /*self*/, const BoundArguments& args) {
  auto namespace_object = std::make_shared<Namespace>();
  for (auto& [key, value] : collect_entries(context, args)) {
    if (key.text() == nullptr) continue;  // no template can ask for it
    namespace_object->set(key.text()->view(), std::move(value));
  }
  context.retained_objects.push_back(namespace_object);
  return Value(std::shared_ptr<Object>(namespace_object));
}

Value range_function(Context& context, const Value& /*self*/, const BoundArguments& args) {
  const bool from_zero = args[1] == nullptr;
  const int64_t begin = from_zero ? 0 : args.integer(0, 0);
  const int64_t end = from_zero ? args.integer(0, 0) : args.integer(1, 0);
  const int64_t step = args.integer(2, 1);
  if (step == 0) throw evaluation_error("range: the step is 0");
  // Unsigned, which holds every difference of two.
  const auto low = static_cast<uint64_t>(step > 0 ? begin : end);
  const auto high = static_cast<uint64_t>(step > 0 ? end : begin);
  const bool is_empty = step > 0 ? begin >= end : end >= begin;
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = is_empty ? 0 : (high - low - 1) / stride + 1;
  if (count > kMaxRangeItems) throw evaluation_error("range: more than {} numbers", kMaxRangeItems);
  context.budget.charge_allocation(count * sizeof(Value));
  std::vector<Value> items;
  items.reserve(count);
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) items.push_back(Value(begin + i * step));
  return Value(std::make_shared<const Sequence>(Sequence::Type::kRange, std::move(items)));
}

Value raise_function(Context& context, const Value& /*self*/, const BoundArguments& args) {
  EvaluationError error{to_str(*args[0], context.budget).bytes()};
  error.raised_by_template = true;
  throw error;
}

Value strftime_function(Context& context, const Value& /*self*/, const BoundArguments& args) {
  return Value::text(format_date(context.settings.now, std::string(args.required_text(0).view())));
}

/// Gives its values in turn.
class Cycler : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> values) : values_(std::move(values)) {
    for (const Value& value : values_) depth = std::max(depth, get_container_depth(value.depth()));
  }
  std::string_view type_name() const override { return "Cycler"; }

  std::optional<Value> attribute(std::string_view name) override {
    const auto bind_method = [&](Function::Body body) {
      return Value(std::shared_ptr<Object>(std::make_shared<Function>(
          "cycler", Parameters{""}, body, Value(std::shared_ptr<Object>(shared_from_this())))));
    };
    if (name == "current") return values_[index_];
    if (name == "next")
      return bind_method([](Context&, const Value& self, const BoundArguments&) { return to_cycler(self).next(); });
    if (name == "reset")
      return bind_method([](Context&, const Value& self, const BoundArguments&) { return to_cycler(self).reset(); });
    return std::nullopt;
  }

 private:
  static Cycler& to_cycler(const Value& value) { return static_cast<Cycler&>(*value.object()); }
  Value next() {
    const size_t current_index = index_;
    index_ = (index_ + 1) % values_.size();
    return values_[current_index];
  }
  Value reset() {
    index_ = 0;
    return Value::none();
  }

  std::vector<Value> values_;
  size_t index_ = 0;
};

/// Gives nothing at first, and then its separator.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {
    depth = get_container_depth(separator_.depth());
  }
  std::string_view type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  Value call(Context& /*context*/, const Arguments& arguments) override {
    if (!arguments.positional.empty() || !arguments.keyword.empty())
      throw evaluation_error("a joiner takes no arguments");
    return std::exchange(is_used_, true) ? separator_ : Value::text("");
  }

 private:
  Value separator_;
  bool is_used_ = false;
};

Value cycler_function(Context& /*context*/, const Value& /*self*/, const BoundArguments& args) {
  if (args.arguments().positional.empty()) throw evaluation_error("a cycler needs values");
  return Value(std::shared_ptr<Object>(std::make_shared<Cycler>(args.arguments().positional)));
}

Value joiner_function(Context& /*context*/, const Value& /*self*/, const BoundArguments& args) {
  return Value(std::shared_ptr<Object>(std::make_shared<Joiner>(args[0] != nullptr ? *args[0] : Value::text(", "))));
}

constexpr std::array kFunctions = {
    Builtin{"cycler", {"*"}, cycler_function},
    Builtin{"dict", {"*"}, dict_function},
    Builtin{"joiner", {"sep"}, joiner_function},
    Builtin{"namespace", {"*"}, namespace_function},
    Builtin{"raise_exception", {"message", 1}, raise_function},
    Builtin{"range", {"start stop step", 1}, range_function},
    Builtin{"strftime_now", {"format", 1}, strftime_function},
};

}  // namespace

std::span<const Builtin> functions() {
  return kFunctions;
}

}  // namespace vlmtrain::text::jinja
