#include "text/jinja/evaluator.h"

#include <algorithm>

#include "text/jinja/access.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/loop.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"

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
struct LoopRetainer {
  Context& context;
  const std::shared_ptr<Loop>& loop;
  ~LoopRetainer() {
    if (loop.use_count() > 1) context.retained_objects.push_back(loop);
  }
};

}  // namespace

/// A scope of its own while it lives.
class Evaluator::ScopeGuard {
 public:
  ScopeGuard(Evaluator& evaluator, std::shared_ptr<Scope> parent) : evaluator_(evaluator), outer_(evaluator.scope_) {
    evaluator_.scope_ = std::make_shared<Scope>(std::move(parent));
  }
  explicit ScopeGuard(Evaluator& evaluator) : ScopeGuard(evaluator, evaluator.scope_) {}
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  ~ScopeGuard() {
    // A macro that was made in it and still lives refers to it, maybe from within it.
    if (evaluator_.scope_.use_count() > 1) evaluator_.retained_scopes_.push_back(evaluator_.scope_);
    evaluator_.scope_ = std::move(outer_);
  }

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_;
};

class Evaluator::NestingGuard {
 public:
  explicit NestingGuard(Evaluator& evaluator) : evaluator_(evaluator) {
    evaluator_.context_.budget.charge_steps();
    if (evaluator_.nesting_ >= kMaxNesting)
      throw evaluation_error("calls and blocks lie more than {} deep in each other", kMaxNesting);
    ++evaluator_.nesting_;
  }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;
  ~NestingGuard() { --evaluator_.nesting_; }

 private:
  Evaluator& evaluator_;
};

Evaluator::~Evaluator() {
  // What may hold each other in a circle is emptied first, and then goes one by one.
  std::vector<Value> values;
  for (const auto& object : context_.retained_objects) {
    for (Value& value : object->release_values()) values.push_back(std::move(value));
  }
  for (const auto& scope : retained_scopes_) {
    for (auto& [name, value] : scope->variables) values.push_back(std::move(value));
    scope->variables.clear();
  }
}

TrackedText Evaluator::render(const std::vector<std::pair<std::string, Value>>& variables) {
  auto globals = std::make_shared<Scope>(nullptr);
  for (const auto& [name, value] : variables) {
    const auto name_index = tree_.name_indices.find(name);
    if (name_index != tree_.name_indices.end()) globals->set(name_index->second, value);
  }
  TrackedText out;
  out_ = &out;
  const ScopeGuard scope_guard(*this, std::move(globals));
  execute(tree_.body);
  return out;
}

Value Evaluator::evaluate(const Expression& expression) {
  try {
    const NestingGuard nesting_guard(*this);
    return std::visit([&](const auto& node) { return evaluate_node(node); }, expression.node);
  } catch (const EvaluationError& error) {
    throw TemplateError(tree_.source_name, expression.line, error.message, error.raised_by_template);
  }
}

Evaluator::Flow Evaluator::execute(const Block& block) {
  for (const Statement& statement : block) {
    const Flow flow = execute(statement);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::execute(const Statement& statement) {
  try {
    const NestingGuard nesting_guard(*this);
    return std::visit([&](const auto& node) { return execute_node(node); }, statement.node);
  } catch (const EvaluationError& error) {
    throw TemplateError(tree_.source_name, statement.line, error.message, error.raised_by_template);
  }
}

TrackedText Evaluator::render_block(const Block& block, Flow& flow) {
  TrackedText output;
  TrackedText* outer = std::exchange(out_, &output);
  try {
    const ScopeGuard scope_guard(*this);
    flow = execute(block);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  context_.budget.charge_allocation(output.size());
  return output;
}

Value Evaluator::evaluate_node(const Literal& node) {
  return node.value;
}

Value Evaluator::make_undefined_name(size_t name) const {
  return Value::undefined(fmt::format("'{}' is undefined", tree_.names[name]));
}

Value Evaluator::evaluate_node(const NameReference& node) {
  if (const Value* variable = scope_->find(node.name)) return *variable;
  const Value& function = tree_.functions[node.name];
  return function.is_undefined() ? make_undefined_name(node.name) : function;
}

Value Evaluator::evaluate_node(const ListLiteral& node) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const auto& item : node.items) items.push_back(evaluate(*item));
  context_.budget.charge_allocation(items.size() * sizeof(Value));
  return node.is_tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value Evaluator::evaluate_node(const DictLiteral& node) {
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(node.entries.size());
  for (const auto& [key, value] : node.entries) {
    context_.budget.charge_scan(entries.size() * 4);
    Value evaluated_key = evaluate(*key);
    insert_or_assign(entries, std::move(evaluated_key), evaluate(*value));
  }
  context_.budget.charge_allocation(entries.size() * 2 * sizeof(Value));
  return Value(std::make_shared<const Dict>(std::move(entries)));
}

Value Evaluator::evaluate_node(const UnaryExpression& node) {
  const Value operand = evaluate(*node.operand);
  if (node.op == UnaryOperator::kNot) return Value(!is_true(operand));
  return node.op == UnaryOperator::kNegative ? negate(operand) : apply_unary_plus(operand);
}

Value Evaluator::evaluate_node(const BinaryExpression& node) {
  const Value left = evaluate(*node.left);
  return calculate(node.op, left, evaluate(*node.right), context_.budget);
}

Value Evaluator::evaluate_node(const LogicalExpression& node) {
  Value left = evaluate(*node.left);
  return is_true(left) == node.is_and ? evaluate(*node.right) : left;
}

Value Evaluator::evaluate_node(const Concatenation& node) {
  TrackedText text;
  for (const auto& element : node.elements) append_str(text, evaluate(*element), context_.budget);
  context_.budget.charge_allocation(text.size());
  return Value::text(std::move(text));
}

Value Evaluator::evaluate_node(const ComparisonChain& node) {
  Value left = evaluate(*node.first);
  for (const auto& [comparison, expression] : node.comparisons) {
    Value right = evaluate(*expression);
    if (!compare(comparison, left, right, context_.budget)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Evaluator::evaluate_node(const ConditionalExpression& node) {
  if (is_true(evaluate(*node.condition))) return evaluate(*node.then_value);
  if (node.else_value) return evaluate(*node.else_value);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Value Evaluator::evaluate_node(const AttributeAccess& node) {
  const Value object = evaluate(*node.object);
  return get_attribute(object, node.name);
}

Value Evaluator::evaluate_node(const ItemAccess& node) {
  const Value object = evaluate(*node.object);
  return get_item(object, evaluate(*node.key), context_.budget);
}

Value Evaluator::evaluate_node(const SliceAccess& node) {
  const Value object = evaluate(*node.object);
  const auto evaluate_bound = [&](const ExpressionPtr& expression) {
    return expression ? evaluate(*expression) : Value::none();
  };
  const Value begin = evaluate_bound(node.begin);
  const Value end = evaluate_bound(node.end);
  return get_slice(object, begin, end, evaluate_bound(node.step), context_.budget);
}

Arguments Evaluator::evaluate_arguments(const CallArguments& call_arguments) {
  Arguments arguments;
  arguments.positional.reserve(call_arguments.positional.size());
  for (const auto& value : call_arguments.positional) arguments.positional.push_back(evaluate(*value));
  for (const auto& [name, value] : call_arguments.keyword) arguments.keyword.emplace_back(name, evaluate(*value));
  if (call_arguments.star_args) {
    const auto unpacked = to_sequence(evaluate(*call_arguments.star_args), context_.budget);
    context_.budget.charge_allocation(unpacked->items.size() * sizeof(Value));
    arguments.positional.insert(arguments.positional.end(), unpacked->items.begin(), unpacked->items.end());
  }
  if (call_arguments.star_kwargs) {
    const Value unpacked = evaluate(*call_arguments.star_kwargs);
    if (unpacked.dict() == nullptr) throw evaluation_error("after ** a dict is needed, not {}", unpacked.type_name());
    context_.budget.charge_allocation(unpacked.dict()->entries.size() * sizeof(Value) * 2);
    for (const auto& [key, value] : unpacked.dict()->entries) {
      if (key.text() == nullptr) throw evaluation_error("the names of arguments must be texts");
      arguments.keyword.emplace_back(key.text()->view(), value);
    }
  }
  return arguments;
}

Value Evaluator::call(const Call& node, const Value* caller) {
  const Value callee = evaluate(*node.callee);
  Arguments arguments = evaluate_arguments(node.arguments);
  if (caller != nullptr) arguments.keyword.emplace_back("caller", *caller);
  if (callee.is_undefined()) throw EvaluationError{callee.get_undefined_message()};
  if (callee.object() == nullptr) throw evaluation_error("a value of type {} cannot be called", callee.type_name());
  return callee.object()->call(context_, arguments);
}

Value Evaluator::evaluate_node(const Call& node) {
  return call(node, nullptr);
}

Value Evaluator::evaluate_node(const FilterCall& node) {
  if (node.filter == nullptr) throw evaluation_error("there is no filter \"{}\"", node.name);
  const Value input = node.operand ? evaluate(*node.operand) : *filter_block_input_;
  return apply_builtin(context_, *node.filter, input, evaluate_arguments(node.arguments));
}

Value Evaluator::evaluate_node(const TestCall& node) {
  if (node.test == nullptr) throw evaluation_error("there is no test \"{}\"", node.name);
  const Value test_input = evaluate(*node.operand);
  return apply_builtin(context_, *node.test, test_input, evaluate_arguments(node.arguments));
}

Evaluator::Flow Evaluator::execute_node(const TemplateData& node) {
  context_.budget.charge_scan(node.text.size());
  Budget::check_size(out_->size() + node.text.size());
  out_->append(node.text);
  return Flow::kNormal;
}

void Evaluator::print(const Value& value) {
  append_str(*out_, value, context_.budget);
  Budget::check_size(out_->size());
}

Evaluator::Flow Evaluator::execute_node(const Print& node) {
  for (const auto& value : node.values) print(evaluate(*value));
  return Flow::kNormal;
}

/// The items of a loop that fit its condition.
std::vector<Value> Evaluator::evaluate_loop_items(const For& node) {
  const auto sequence = to_sequence(evaluate(*node.items), context_.budget);
  context_.budget.charge_allocation(sequence->items.size() * sizeof(Value));
  if (!node.condition) return sequence->items;
  std::vector<Value> selected_items;
  for (const Value& item : sequence->items) {
    const ScopeGuard scope_guard(*this);
    assign(node.target, item);
    if (is_true(evaluate(*node.condition))) selected_items.push_back(item);
  }
  return selected_items;
}

Evaluator::Flow Evaluator::execute_node(const For& node) {
  const auto loop = std::make_shared<Loop>(evaluate_loop_items(node), 0);
  const LoopRetainer loop_retainer{context_, loop};
  bool is_body_completed = false;
  for (size_t i = 0; i < loop->size(); ++i) {
    loop->set_index(i);
    Flow flow = Flow::kNormal;
    {
      const ScopeGuard scope_guard(*this);
      scope_->set(kLoopName, Value(std::shared_ptr<Object>(loop)));
      assign(node.target, loop->item());
      flow = execute(node.body);
    }
    // As in the code that Jinja2 makes: what does not reach the end of the body does not count for the else.
    is_body_completed = is_body_completed || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  if (is_body_completed || node.else_body.empty()) return Flow::kNormal;
  const ScopeGuard scope_guard(*this);
  return execute(node.else_body);
}

Evaluator::Flow Evaluator::execute_node(const If& node) {
  for (const auto& [condition, block] : node.branches) {
    if (is_true(evaluate(*condition))) return execute(block);
  }
  return execute(node.else_body);
}

void Evaluator::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const auto items = to_sequence(value, context_.budget);
    if (items->items.size() != target.elements.size()) {
      throw evaluation_error("{} values cannot be given to {} names", items->items.size(), target.elements.size());
    }
    for (size_t i = 0; i < target.elements.size(); ++i) assign(target.elements[i], items->items[i]);
    return;
  }
  if (target.attribute.empty()) return scope_->set(target.name, value);
  const Value* holder = scope_->find(target.name);
  auto* namespace_object = holder == nullptr ? nullptr : dynamic_cast<Namespace*>(holder->object());
  if (namespace_object == nullptr)
    throw evaluation_error("\"{}\" is no namespace, so it can be given no attribute", tree_.names[target.name]);
  context_.budget.charge_allocation(sizeof(Value));
  namespace_object->set(target.attribute, value);
}

Evaluator::Flow Evaluator::execute_node(const Set& node) {
  assign(node.target, evaluate(*node.value));
  return Flow::kNormal;
}

Value Evaluator::apply_filter(const Expression& filter, TrackedText text) {
  const Value input = Value::text(std::move(text));
  const Value* outer = std::exchange(filter_block_input_, &input);
  try {
    Value result = evaluate(filter);
    filter_block_input_ = outer;
    return result;
  } catch (...) {
    filter_block_input_ = outer;
    throw;
  }
}

Evaluator::Flow Evaluator::execute_node(const SetBlock& node) {
  Flow flow = Flow::kNormal;
  TrackedText output = render_block(node.body, flow);
  if (flow != Flow::kNormal) return flow;
  assign(node.target, node.filter ? apply_filter(*node.filter, std::move(output)) : Value::text(std::move(output)));
  return Flow::kNormal;
}

Value Evaluator::make_macro_value(const MacroDefinition& macro) {
  return Value(std::shared_ptr<Object>(std::make_shared<Macro>(*this, macro, tree_.names[macro.name], scope_)));
}

Evaluator::Flow Evaluator::execute_node(const MacroDefinition& node) {
  scope_->set(node.name, make_macro_value(node));
  return Flow::kNormal;
}

Value Evaluator::call_macro(const MacroDefinition& macro, const std::shared_ptr<Scope>& closure,
                            const Arguments& arguments) {
  const NestingGuard nesting_guard(*this);
  const Signature& signature = macro.signature;
  const std::string& name = tree_.names[macro.name];
  const size_t count = signature.parameters.size();
  std::vector<const Value*> parameter_values(count, nullptr);
  for (size_t i = 0; i < std::min(count, arguments.positional.size()); ++i)
    parameter_values[i] = &arguments.positional[i];
  std::vector<std::pair<Value, Value>> kwargs;
  Value caller = Value::undefined("No caller defined");
  for (const auto& [keyword_name, value] : arguments.keyword) {
    const std::string& key = keyword_name;  // C++20 as clang 14 has it captures no binding
    const auto parameter = std::find_if(signature.parameters.begin(), signature.parameters.end(),
                                        [&](size_t name_index) { return tree_.names[name_index] == key; });
    const auto index = static_cast<size_t>(parameter - signature.parameters.begin());
    if (index < count && parameter_values[index] == nullptr) {
      parameter_values[index] = &value;
    } else if (signature.takes_caller && key == "caller") {
      caller = value;
    } else if (signature.takes_kwargs) {
      insert_or_assign(kwargs, Value::text(key), value);
    } else {
      throw evaluation_error("the macro {} takes no argument \"{}\"", name, key);
    }
  }
  if (arguments.positional.size() > count && !signature.takes_varargs) {
    throw evaluation_error("the macro {} takes {} arguments at most, not {}", name, count, arguments.positional.size());
  }

  TrackedText output;
  TrackedText* outer = std::exchange(out_, &output);
  try {
    const ScopeGuard scope_guard(*this, closure);
    if (signature.takes_caller) scope_->set(kCallerName, caller);
    if (signature.takes_kwargs) scope_->set(kKwargsName, Value(std::make_shared<const Dict>(std::move(kwargs))));
    if (signature.takes_varargs) {
      const auto first_vararg = static_cast<std::ptrdiff_t>(std::min(count, arguments.positional.size()));
      scope_->set(kVarargsName,
                  Value::tuple({arguments.positional.begin() + first_vararg, arguments.positional.end()}));
    }
    const size_t num_required = count - signature.defaults.size();
    for (size_t i = 0; i < count; ++i) {
      if (parameter_values[i] != nullptr) scope_->set(signature.parameters[i], *parameter_values[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      if (parameter_values[i] != nullptr) continue;
      const std::string& parameter = tree_.names[signature.parameters[i]];
      scope_->set(signature.parameters[i],
                  i >= num_required ? evaluate(*signature.defaults[i - num_required])
                                    : Value::undefined(fmt::format("parameter '{}' was not provided", parameter)));
    }
    execute(macro.body);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  context_.budget.charge_allocation(output.size());
  return Value::text(std::move(output));
}

Evaluator::Flow Evaluator::execute_node(const CallBlock& node) {
  const Value caller = make_macro_value(node.caller);
  print(call(std::get<Call>(node.call->node), &caller));
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::execute_node(const FilterBlock& node) {
  Flow flow = Flow::kNormal;
  TrackedText output = render_block(node.body, flow);
  if (flow == Flow::kNormal) print(apply_filter(*node.filter, std::move(output)));
  return flow;
}

Evaluator::Flow Evaluator::execute_node(const With& node) {
  std::vector<Value> values;
  for (const auto& [target, expression] : node.values) values.push_back(evaluate(*expression));
  const ScopeGuard scope_guard(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(node.values[i].first, values[i]);
  return execute(node.body);
}

Evaluator::Flow Evaluator::execute_node(const GenerationBlock& node) {
  Flow flow = Flow::kNormal;
  TrackedText output = render_block(node.body, flow);
  output.mark_generated();
  out_->append(output);
  Budget::check_size(out_->size());
  return flow;
}

Evaluator::Flow Evaluator::execute_node(const Break& /*node*/) {
  return Flow::kBreak;
}

Evaluator::Flow Evaluator::execute_node(const Continue& /*node*/) {
  return Flow::kContinue;
}

}  // namespace vlmtrain::text::jinja
