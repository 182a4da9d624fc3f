#include "text/jinja/loop.h"

namespace vlmtrain::text::jinja {

std::optional<Value> Loop::attribute(std::string_view name) {
  const auto bind_method = [&](std::string_view method, Function::Body body) {
    return Value(std::shared_ptr<Object>(
        std::make_shared<Function>(method, Parameters{"*"}, body, Value(std::shared_ptr<Object>(shared_from_this())))));
  };
  const size_t count = items_.size();
  if (name == "index") return Value(index_ + 1);
  if (name == "index0") return Value(index_);
  if (name == "revindex") return Value(count - index_);
  if (name == "revindex0") return Value(count - index_ - 1);
  if (name == "first") return Value(index_ == 0);
  if (name == "last") return Value(index_ + 1 == count);
  if (name == "length") return Value(count);
  if (name == "depth") return Value(level_ + 1);
  if (name == "depth0") return Value(level_);
  if (name == "previtem") return index_ == 0 ? Value::undefined("there is no previous item") : items_[index_ - 1];
  if (name == "nextitem") return index_ + 1 >= count ? Value::undefined("there is no next item") : items_[index_ + 1];
  if (name == "changed") {
    return bind_method("loop.changed", [](Context& context, const Value& self, const BoundArguments& args) {
      return static_cast<Loop&>(*self.object()).update_changed(args.arguments(), context.budget);
    });
  }
  if (name == "cycle") {
    return bind_method("loop.cycle", [](Context& /*context*/, const Value& self, const BoundArguments& args) {
      return static_cast<Loop&>(*self.object()).cycle(args.arguments());
    });
  }
  return std::nullopt;
}

std::vector<Value> Loop::release_values() {
  std::vector<Value> values = std::move(items_);
  items_.clear();
  if (last_value_) values.push_back(std::move(*last_value_));
  last_value_.reset();
  return values;
}

Value Loop::update_changed(const Arguments& arguments, Budget& budget) {
  if (!arguments.keyword.empty()) throw evaluation_error("loop.changed takes no named arguments");
  Value current = Value::tuple(arguments.positional);
  const bool is_changed = !last_value_ || !is_equal(*last_value_, current, budget);
  if (is_changed) last_value_ = std::move(current);
  return Value(is_changed);
}

Value Loop::cycle(const Arguments& arguments) const {
  if (arguments.positional.empty() || !arguments.keyword.empty())
    throw evaluation_error("loop.cycle needs values to give");
  return arguments.positional[index_ % arguments.positional.size()];
}

}  // namespace vlmtrain::text::jinja
