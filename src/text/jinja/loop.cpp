#include "text/jinja/loop.h"

namespace vlmtrain::text::jinja {

std::optional<Value> Loop::attribute(std::string_view name) {
  const auto bound = [&](std::string_view method, Function::Body body) {
    return Value(std::shared_ptr<Object>(
        std::make_shared<Function>(method, Parameters{"*"}, body, Value(std::shared_ptr<Object>(shared_from_this())))));
  };
  const size_t count = items_.size();
  if (name == "index") return Value(at_ + 1);
  if (name == "index0") return Value(at_);
  if (name == "revindex") return Value(count - at_);
  if (name == "revindex0") return Value(count - at_ - 1);
  if (name == "first") return Value(at_ == 0);
  if (name == "last") return Value(at_ + 1 == count);
  if (name == "length") return Value(count);
  if (name == "depth") return Value(level_ + 1);
  if (name == "depth0") return Value(level_);
  if (name == "previtem") return at_ == 0 ? Value::undefined("there is no previous item") : items_[at_ - 1];
  if (name == "nextitem") return at_ + 1 >= count ? Value::undefined("there is no next item") : items_[at_ + 1];
  if (name == "changed") {
    return bound("loop.changed", [](Context& context, const Value& self, const Bound& given) {
      return static_cast<Loop&>(*self.object()).changed(given.all(), context.budget);
    });
  }
  if (name == "cycle") {
    return bound("loop.cycle", [](Context& /*context*/, const Value& self, const Bound& given) {
      return static_cast<Loop&>(*self.object()).cycle(given.all());
    });
  }
  return std::nullopt;
}

std::vector<Value> Loop::emptied() {
  std::vector<Value> values = std::move(items_);
  items_.clear();
  if (last_) values.push_back(std::move(*last_));
  last_.reset();
  return values;
}

Value Loop::changed(const Arguments& arguments, Budget& budget) {
  if (!arguments.keyword.empty()) throw failure("loop.changed takes no named arguments");
  Value now = Value::tuple(arguments.positional);
  const bool differs = !last_ || !is_equal(*last_, now, budget);
  if (differs) last_ = std::move(now);
  return Value(differs);
}

Value Loop::cycle(const Arguments& arguments) const {
  if (arguments.positional.empty() || !arguments.keyword.empty()) throw failure("loop.cycle needs values to give");
  return arguments.positional[at_ % arguments.positional.size()];
}

}  // namespace vlmtrain::text::jinja
