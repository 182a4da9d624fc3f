#include "text/jinja/evaluator.h"

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"

namespace vlmtrain::text::jinja {

Evaluator::~Evaluator() {
  // Objects and scopes may refer to each other in cycles. Moving their values out breaks the
  // cycles. It also frees deep structures one by one, because recursive destructors could overflow
  // the stack.
  std::vector<Value> values;
  for (const auto& object : context_.retained_objects) {
    for (Value& value : object->release_values()) values.push_back(std::move(value));
  }
  for (const auto& scope : retained_scopes_) {
    for (auto& [name, value] : scope->variables) values.push_back(std::move(value));
    scope->variables.clear();
  }
}

TextWithOrigins Evaluator::render(const std::vector<std::pair<std::string, Value>>& variables) {
  auto global_scope = std::make_shared<Scope>(nullptr);
  for (const auto& [name, value] : variables) {
    const auto name_entry = tree_.name_indices.find(name);
    if (name_entry != tree_.name_indices.end()) global_scope->set(name_entry->second, value);
  }
  TextWithOrigins out;
  output_ = &out;
  const ScopeGuard scope_guard(*this, std::move(global_scope));
  execute(tree_.body);
  return out;
}

Value Evaluator::evaluate(const Expression& expression) {
  try {
    const NestingGuard nesting_guard(*this);
    return std::visit([&](const auto& node) { return evaluate_node(node); }, expression.node);
  } catch (const EvaluationError& error) {
    throw TemplateError(tree_.source_name, expression.line, error.message, error.is_raised_by_template);
  }
}

Evaluator::ControlFlow Evaluator::execute(const Block& block) {
  for (const Statement& statement : block) {
    const ControlFlow control_flow = execute(statement);
    if (control_flow != ControlFlow::kNormal) return control_flow;
  }
  return ControlFlow::kNormal;
}

Evaluator::ControlFlow Evaluator::execute(const Statement& statement) {
  try {
    const NestingGuard nesting_guard(*this);
    return std::visit([&](const auto& node) { return execute_node(node); }, statement.node);
  } catch (const EvaluationError& error) {
    throw TemplateError(tree_.source_name, statement.line, error.message, error.is_raised_by_template);
  }
}

TextWithOrigins Evaluator::render_block(const Block& block, ControlFlow& control_flow) {
  TextWithOrigins output;
  TextWithOrigins* outer_output = std::exchange(output_, &output);
  try {
    const ScopeGuard scope_guard(*this);
    control_flow = execute(block);
  } catch (...) {
    output_ = outer_output;
    throw;
  }
  output_ = outer_output;
  context_.budget.charge_allocation(output.size());
  return output;
}

Value Evaluator::evaluate_node(const Literal& node) {
  return node.value;
}

Value Evaluator::make_undefined_value(size_t name) const {
  return Value::undefined(fmt::format("'{}' is undefined", tree_.names[name]));
}

Value Evaluator::evaluate_node(const NameReference& node) {
  if (const Value* variable = current_scope_->find(node.name)) return *variable;
  const Value& function = tree_.global_functions_by_name[node.name];
  return function.is_undefined() ? make_undefined_value(node.name) : function;
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
    // insert_or_assign() compares with all entries; a comparison counts as 4 items. Not tuned.
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
  return apply_binary_operator(node.op, left, evaluate(*node.right), context_.budget);
}

Value Evaluator::evaluate_node(const LogicalExpression& node) {
  Value left = evaluate(*node.left);
  return is_true(left) == node.is_and ? evaluate(*node.right) : left;
}

Value Evaluator::evaluate_node(const Concatenation& node) {
  TextWithOrigins text;
  for (const auto& element : node.elements) append_str(text, evaluate(*element), context_.budget);
  context_.budget.charge_allocation(text.size());
  return Value::text(std::move(text));
}

Value Evaluator::evaluate_node(const ComparisonChain& node) {
  Value left = evaluate(*node.first_operand);
  for (const auto& [comparison, expression] : node.comparisons) {
    Value right = evaluate(*expression);
    if (!apply_comparison_operator(comparison, left, right, context_.budget)) return Value(false);
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
  const auto evaluate_or_none = [&](const ExpressionPtr& expression) {
    return expression ? evaluate(*expression) : Value::none();
  };
  const Value begin = evaluate_or_none(node.begin);
  const Value end = evaluate_or_none(node.end);
  return get_slice(object, begin, end, evaluate_or_none(node.step), context_.budget);
}

Arguments Evaluator::evaluate_arguments(const CallArguments& call_arguments) {
  Arguments arguments;
  arguments.positional.reserve(call_arguments.positional.size());
  for (const auto& value : call_arguments.positional) arguments.positional.push_back(evaluate(*value));
  for (const auto& [name, value] : call_arguments.keyword) arguments.keyword.emplace_back(name, evaluate(*value));
  if (call_arguments.star_args) {
    const auto unpacked_arguments = to_sequence(evaluate(*call_arguments.star_args), context_.budget);
    context_.budget.charge_allocation(unpacked_arguments->items.size() * sizeof(Value));
    arguments.positional.insert(arguments.positional.end(), unpacked_arguments->items.begin(),
                                unpacked_arguments->items.end());
  }
  if (call_arguments.star_kwargs) {
    const Value unpacked_arguments = evaluate(*call_arguments.star_kwargs);
    if (unpacked_arguments.dict() == nullptr)
      throw evaluation_error("the argument after ** must be a dict, not {}", unpacked_arguments.type_name());
    context_.budget.charge_allocation(unpacked_arguments.dict()->entries.size() * sizeof(Value) * 2);
    for (const auto& [key, value] : unpacked_arguments.dict()->entries) {
      if (key.text() == nullptr) throw evaluation_error("argument names must be strings");
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
  if (callee.object() == nullptr) throw evaluation_error("a value of type {} is not callable", callee.type_name());
  return callee.object()->call(context_, arguments);
}

Value Evaluator::evaluate_node(const Call& node) {
  return call(node, nullptr);
}

Value Evaluator::evaluate_node(const FilterCall& node) {
  if (node.filter == nullptr) throw EvaluationError{describe_unknown_name("filter", node.name)};
  const Value input = node.operand ? evaluate(*node.operand) : *filter_block_input_;
  return call_builtin(context_, *node.filter, input, evaluate_arguments(node.arguments));
}

Value Evaluator::evaluate_node(const TestCall& node) {
  if (node.test == nullptr) throw EvaluationError{describe_unknown_name("test", node.name)};
  const Value tested_value = evaluate(*node.operand);
  return call_builtin(context_, *node.test, tested_value, evaluate_arguments(node.arguments));
}

}  // namespace vlmtrain::text::jinja
