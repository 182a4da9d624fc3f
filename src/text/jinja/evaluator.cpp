#include "text/jinja/evaluator.h"

#include <algorithm>

#include "text/jinja/access.h"
#include "text/jinja/callables.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/python_text.h"

namespace vlmtrain::text::jinja {
namespace {

/// A macro, with the names that it sees.
class Macro : public Object {
 public:
  Macro(Evaluator& evaluator, const MacroDefinition& definition, std::string_view name, std::shared_ptr<Scope> closure)
      : evaluator_(evaluator), definition_(definition), name_(name), closure_(std::move(closure)) {}

  std::string_view type_name() const override { return "Macro"; }
  bool is_callable() const override { return true; }
  std::optional<Value> attribute(std::string_view name) override {
    if (name == "name") return Value::text(std::string(name_));
    return std::nullopt;
  }
  Value call(Context& /*context*/, const Arguments& arguments) override {
    return evaluator_.call_macro(definition_, closure_, arguments);
  }

 private:
  Evaluator& evaluator_;
  const MacroDefinition& definition_;
  std::string_view name_;
  std::shared_ptr<Scope> closure_;
};

/// What may hold itself is left to the context if more than its owner holds it.
struct KeptIfHeld {
  Context& context;
  const std::shared_ptr<Loop>& loop;
  ~KeptIfHeld() {
    if (loop.use_count() > 1) context.kept.push_back(loop);
  }
};

}  // namespace

/// A scope of its own while it lives.
class Evaluator::Inside {
 public:
  Inside(Evaluator& evaluator, std::shared_ptr<Scope> parent) : evaluator_(evaluator), outer_(evaluator.scope_) {
    evaluator_.scope_ = std::make_shared<Scope>(std::move(parent));
  }
  explicit Inside(Evaluator& evaluator) : Inside(evaluator, evaluator.scope_) {}
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() {
    // A macro that was made in it and still lives refers to it, maybe from within it.
    if (evaluator_.scope_.use_count() > 1) evaluator_.kept_scopes_.push_back(evaluator_.scope_);
    evaluator_.scope_ = std::move(outer_);
  }

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_;
};

class Evaluator::Nesting {
 public:
  explicit Nesting(Evaluator& evaluator) : evaluator_(evaluator) {
    evaluator_.context_.budget.step();
    if (evaluator_.nesting_ >= kMaxNesting)
      throw failure("calls and blocks lie more than {} deep in each other", kMaxNesting);
    ++evaluator_.nesting_;
  }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  ~Nesting() { --evaluator_.nesting_; }

 private:
  Evaluator& evaluator_;
};

Evaluator::~Evaluator() {
  // What may hold each other in a circle is emptied first, and then goes one by one.
  std::vector<Value> values;
  for (const auto& object : context_.kept) {
    for (Value& value : object->emptied()) values.push_back(std::move(value));
  }
  for (const auto& scope : kept_scopes_) {
    for (auto& [name, value] : scope->variables) values.push_back(std::move(value));
    scope->variables.clear();
  }
}

MarkedText Evaluator::render(const std::vector<std::pair<std::string, Value>>& variables) {
  auto given = std::make_shared<Scope>(nullptr);
  for (const auto& [name, value] : variables) {
    const auto number = tree_.numbers.find(name);
    if (number != tree_.numbers.end()) given->set(number->second, value);
  }
  MarkedText out;
  out_ = &out;
  const Inside inside(*this, std::move(given));
  run(tree_.body);
  return out;
}

Value Evaluator::evaluate(const Expression& expression) {
  try {
    const Nesting nesting(*this);
    return std::visit([&](const auto& node) { return operator_of(node); }, expression.node);
  } catch (const Failure& failure) {
    throw TemplateError(tree_.source_name, expression.line, failure.message, failure.raised);
  }
}

Evaluator::Flow Evaluator::run(const Block& block) {
  for (const Statement& statement : block) {
    const Flow flow = run(statement);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Evaluator::Flow Evaluator::run(const Statement& statement) {
  try {
    const Nesting nesting(*this);
    return std::visit([&](const auto& node) { return perform(node); }, statement.node);
  } catch (const Failure& failure) {
    throw TemplateError(tree_.source_name, statement.line, failure.message, failure.raised);
  }
}

MarkedText Evaluator::written_by(const Block& block, Flow& flow) {
  MarkedText written;
  MarkedText* outer = std::exchange(out_, &written);
  try {
    const Inside inside(*this);
    flow = run(block);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  context_.budget.made(written.size());
  return written;
}

Value Evaluator::operator_of(const Literal& node) {
  return node.value;
}

Value Evaluator::undefined_name(size_t name) const {
  return Value::undefined(fmt::format("'{}' is undefined", tree_.names[name]));
}

Value Evaluator::operator_of(const NameUse& node) {
  if (const Value* found = scope_->find(node.name)) return *found;
  const Value& function = tree_.functions[node.name];
  return function.is_undefined() ? undefined_name(node.name) : function;
}

Value Evaluator::operator_of(const ListOf& node) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const auto& item : node.items) items.push_back(evaluate(*item));
  context_.budget.made(items.size() * sizeof(Value));
  return node.is_tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value Evaluator::operator_of(const DictOf& node) {
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(node.entries.size());
  for (const auto& [key, value] : node.entries) {
    context_.budget.walk(entries.size() * 4);
    Value its_key = evaluate(*key);
    put(entries, std::move(its_key), evaluate(*value));
  }
  context_.budget.made(entries.size() * 2 * sizeof(Value));
  return Value(std::make_shared<const Dict>(std::move(entries)));
}

Value Evaluator::operator_of(const UnaryUse& node) {
  const Value operand = evaluate(*node.operand);
  if (node.unary == Unary::kNot) return Value(!is_true(operand));
  return node.unary == Unary::kNegative ? negative(operand) : positive(operand);
}

Value Evaluator::operator_of(const BinaryUse& node) {
  const Value left = evaluate(*node.left);
  return calculate(node.binary, left, evaluate(*node.right), context_.budget);
}

Value Evaluator::operator_of(const Logical& node) {
  Value left = evaluate(*node.left);
  return is_true(left) == node.is_and ? evaluate(*node.right) : left;
}

Value Evaluator::operator_of(const Concatenation& node) {
  MarkedText whole;
  for (const auto& part : node.parts) append_str(whole, evaluate(*part), context_.budget);
  context_.budget.made(whole.size());
  return Value::text(std::move(whole));
}

Value Evaluator::operator_of(const ComparisonChain& node) {
  Value left = evaluate(*node.first);
  for (const auto& [comparison, expression] : node.rest) {
    Value right = evaluate(*expression);
    if (!compare(comparison, left, right, context_.budget)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Evaluator::operator_of(const Conditional& node) {
  if (is_true(evaluate(*node.condition))) return evaluate(*node.then);
  if (node.otherwise) return evaluate(*node.otherwise);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Value Evaluator::operator_of(const AttributeOf& node) {
  const Value object = evaluate(*node.object);
  return get_attribute(object, node.name);
}

Value Evaluator::operator_of(const ItemOf& node) {
  const Value object = evaluate(*node.object);
  return get_item(object, evaluate(*node.key), context_.budget);
}

Value Evaluator::operator_of(const SliceOf& node) {
  const Value object = evaluate(*node.object);
  const auto bound = [&](const ExpressionPtr& expression) {
    return expression ? evaluate(*expression) : Value::none();
  };
  const Value begin = bound(node.begin);
  const Value end = bound(node.end);
  return get_slice(object, begin, end, bound(node.step), context_.budget);
}

Arguments Evaluator::arguments_of(const CallArguments& given) {
  Arguments arguments;
  arguments.positional.reserve(given.positional.size());
  for (const auto& value : given.positional) arguments.positional.push_back(evaluate(*value));
  for (const auto& [name, value] : given.keyword) arguments.keyword.emplace_back(name, evaluate(*value));
  if (given.all_positional) {
    const auto more = items_of(evaluate(*given.all_positional), context_.budget);
    context_.budget.made(more->items.size() * sizeof(Value));
    arguments.positional.insert(arguments.positional.end(), more->items.begin(), more->items.end());
  }
  if (given.all_keyword) {
    const Value more = evaluate(*given.all_keyword);
    if (more.dict() == nullptr) throw failure("after ** a dict is needed, not {}", more.type_name());
    context_.budget.made(more.dict()->entries.size() * sizeof(Value) * 2);
    for (const auto& [key, value] : more.dict()->entries) {
      if (key.text() == nullptr) throw failure("the names of arguments must be texts");
      arguments.keyword.emplace_back(key.text()->view(), value);
    }
  }
  return arguments;
}

Value Evaluator::call(const Call& node, const Value* caller) {
  const Value callee = evaluate(*node.callee);
  Arguments arguments = arguments_of(node.arguments);
  if (caller != nullptr) arguments.keyword.emplace_back("caller", *caller);
  if (callee.is_undefined()) throw Failure{callee.why_undefined()};
  if (callee.object() == nullptr) throw failure("a value of type {} cannot be called", callee.type_name());
  return callee.object()->call(context_, arguments);
}

Value Evaluator::operator_of(const Call& node) {
  return call(node, nullptr);
}

Value Evaluator::operator_of(const FilterUse& node) {
  if (node.filter == nullptr) throw failure("there is no filter \"{}\"", node.name);
  const Value input = node.operand ? evaluate(*node.operand) : *block_input_;
  return apply(context_, *node.filter, input, arguments_of(node.arguments));
}

Value Evaluator::operator_of(const TestUse& node) {
  if (node.test == nullptr) throw failure("there is no test \"{}\"", node.name);
  const Value tested = evaluate(*node.operand);
  return apply(context_, *node.test, tested, arguments_of(node.arguments));
}

Evaluator::Flow Evaluator::perform(const Data& node) {
  context_.budget.walk(node.text.size());
  Budget::check_text(out_->size() + node.text.size());
  out_->append(node.text);
  return Flow::kOn;
}

void Evaluator::print(const Value& value) {
  append_str(*out_, value, context_.budget);
  Budget::check_text(out_->size());
}

Evaluator::Flow Evaluator::perform(const Print& node) {
  for (const auto& value : node.values) print(evaluate(*value));
  return Flow::kOn;
}

/// The items of a loop that fit its condition.
std::vector<Value> Evaluator::items_for(const For& node) {
  const auto all = items_of(evaluate(*node.items), context_.budget);
  context_.budget.made(all->items.size() * sizeof(Value));
  if (!node.condition) return all->items;
  std::vector<Value> chosen;
  for (const Value& item : all->items) {
    const Inside inside(*this);
    assign(node.target, item);
    if (is_true(evaluate(*node.condition))) chosen.push_back(item);
  }
  return chosen;
}

Evaluator::Flow Evaluator::perform(const For& node) {
  const auto loop = std::make_shared<Loop>(items_for(node), 0);
  const KeptIfHeld kept{context_, loop};
  bool completed = false;
  for (size_t i = 0; i < loop->size(); ++i) {
    loop->move_to(i);
    Flow flow = Flow::kOn;
    {
      const Inside inside(*this);
      scope_->set(kLoopName, Value(std::shared_ptr<Object>(loop)));
      assign(node.target, loop->item());
      flow = run(node.body);
    }
    // As in the code that Jinja2 makes: what does not reach the end of the body does not count for the else.
    completed = completed || flow == Flow::kOn;
    if (flow == Flow::kBreak) break;
  }
  if (completed || node.otherwise.empty()) return Flow::kOn;
  const Inside inside(*this);
  return run(node.otherwise);
}

Evaluator::Flow Evaluator::perform(const If& node) {
  for (const auto& [condition, block] : node.branches) {
    if (is_true(evaluate(*condition))) return run(block);
  }
  return run(node.otherwise);
}

void Evaluator::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const auto items = items_of(value, context_.budget);
    if (items->items.size() != target.parts.size()) {
      throw failure("{} values cannot be given to {} names", items->items.size(), target.parts.size());
    }
    for (size_t i = 0; i < target.parts.size(); ++i) assign(target.parts[i], items->items[i]);
    return;
  }
  if (target.attribute.empty()) return scope_->set(target.name, value);
  const Value* holder = scope_->find(target.name);
  auto* its = holder == nullptr ? nullptr : dynamic_cast<Namespace*>(holder->object());
  if (its == nullptr)
    throw failure("\"{}\" is no namespace, so it can be given no attribute", tree_.names[target.name]);
  context_.budget.made(sizeof(Value));
  its->set(target.attribute, value);
}

Evaluator::Flow Evaluator::perform(const Set& node) {
  assign(node.target, evaluate(*node.value));
  return Flow::kOn;
}

Value Evaluator::filtered(const Expression& filter, MarkedText text) {
  const Value input = Value::text(std::move(text));
  const Value* outer = std::exchange(block_input_, &input);
  try {
    Value result = evaluate(filter);
    block_input_ = outer;
    return result;
  } catch (...) {
    block_input_ = outer;
    throw;
  }
}

Evaluator::Flow Evaluator::perform(const SetBlock& node) {
  Flow flow = Flow::kOn;
  MarkedText written = written_by(node.body, flow);
  if (flow != Flow::kOn) return flow;
  assign(node.target, node.filtered ? filtered(*node.filtered, std::move(written)) : Value::text(std::move(written)));
  return Flow::kOn;
}

Value Evaluator::macro_value(const MacroDefinition& macro) {
  return Value(std::shared_ptr<Object>(std::make_shared<Macro>(*this, macro, tree_.names[macro.name], scope_)));
}

Evaluator::Flow Evaluator::perform(const MacroDefinition& node) {
  scope_->set(node.name, macro_value(node));
  return Flow::kOn;
}

Value Evaluator::call_macro(const MacroDefinition& macro, const std::shared_ptr<Scope>& closure,
                            const Arguments& arguments) {
  const Nesting nesting(*this);
  const Signature& signature = macro.signature;
  const std::string& name = tree_.names[macro.name];
  const size_t count = signature.parameters.size();
  std::vector<const Value*> given(count, nullptr);
  for (size_t i = 0; i < std::min(count, arguments.positional.size()); ++i) given[i] = &arguments.positional[i];
  std::vector<std::pair<Value, Value>> more_keyword;
  Value caller = Value::undefined("No caller defined");
  for (const auto& [its_name, value] : arguments.keyword) {
    const std::string& key = its_name;  // C++20 as clang 14 has it captures no binding
    const auto parameter = std::find_if(signature.parameters.begin(), signature.parameters.end(),
                                        [&](size_t number) { return tree_.names[number] == key; });
    const auto index = static_cast<size_t>(parameter - signature.parameters.begin());
    if (index < count && given[index] == nullptr) {
      given[index] = &value;
    } else if (signature.takes_caller && key == "caller") {
      caller = value;
    } else if (signature.takes_more_keyword) {
      put(more_keyword, Value::text(key), value);
    } else {
      throw failure("the macro {} takes no argument \"{}\"", name, key);
    }
  }
  if (arguments.positional.size() > count && !signature.takes_more_positional) {
    throw failure("the macro {} takes {} arguments at most, not {}", name, count, arguments.positional.size());
  }

  MarkedText written;
  MarkedText* outer = std::exchange(out_, &written);
  try {
    const Inside inside(*this, closure);
    if (signature.takes_caller) scope_->set(kCallerName, caller);
    if (signature.takes_more_keyword)
      scope_->set(kKwargsName, Value(std::make_shared<const Dict>(std::move(more_keyword))));
    if (signature.takes_more_positional) {
      const auto first_more = static_cast<std::ptrdiff_t>(std::min(count, arguments.positional.size()));
      scope_->set(kVarargsName, Value::tuple({arguments.positional.begin() + first_more, arguments.positional.end()}));
    }
    const size_t without_default = count - signature.defaults.size();
    for (size_t i = 0; i < count; ++i) {
      if (given[i] != nullptr) scope_->set(signature.parameters[i], *given[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      if (given[i] != nullptr) continue;
      const std::string& parameter = tree_.names[signature.parameters[i]];
      scope_->set(signature.parameters[i],
                  i >= without_default ? evaluate(*signature.defaults[i - without_default])
                                       : Value::undefined(fmt::format("parameter '{}' was not provided", parameter)));
    }
    run(macro.body);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  context_.budget.made(written.size());
  return Value::text(std::move(written));
}

Evaluator::Flow Evaluator::perform(const CallBlock& node) {
  const Value caller = macro_value(node.caller);
  print(call(std::get<Call>(node.call->node), &caller));
  return Flow::kOn;
}

Evaluator::Flow Evaluator::perform(const FilterBlock& node) {
  Flow flow = Flow::kOn;
  MarkedText written = written_by(node.body, flow);
  if (flow == Flow::kOn) print(filtered(*node.filtered, std::move(written)));
  return flow;
}

Evaluator::Flow Evaluator::perform(const With& node) {
  std::vector<Value> values;
  for (const auto& [target, expression] : node.values) values.push_back(evaluate(*expression));
  const Inside inside(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(node.values[i].first, values[i]);
  return run(node.body);
}

Evaluator::Flow Evaluator::perform(const Generation& node) {
  Flow flow = Flow::kOn;
  MarkedText written = written_by(node.body, flow);
  written.mark_generated();
  out_->append(written);
  Budget::check_text(out_->size());
  return flow;
}

Evaluator::Flow Evaluator::perform(const Break& /*node*/) {
  return Flow::kBreak;
}

Evaluator::Flow Evaluator::perform(const Continue& /*node*/) {
  return Flow::kContinue;
}

}  // namespace vlmtrain::text::jinja
