#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "text/jinja/evaluator.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"

namespace vlmtrain::text::jinja {
namespace {

/// The variable `loop` of a for statement: the items, the current index, and the attributes of
/// Jinja2's LoopContext.
class LoopContext : public Object, public std::enable_shared_from_this<LoopContext> {
 public:
  /// `recursion_depth`: number of enclosing levels of a recursive loop, which are not supported: 0.
  explicit LoopContext(std::vector<Value> items, int64_t recursion_depth)
      : items_(std::move(items)), recursion_depth_(recursion_depth) {}

  size_t size() const { return items_.size(); }
  const Value& current_item() const { return items_[index_]; }
  void set_index(size_t pos) { index_ = pos; }

  std::string_view type_name() const override { return "LoopContext"; }
  std::optional<Value> find_attribute(std::string_view name) override;
  std::vector<Value> release_values() override;

 private:
  /// The method loop.changed(…): returns whether the arguments differ from the previous call.
  Value update_last_changed_arguments(const Arguments& arguments, RenderBudget& budget);
  /// The method loop.cycle(…): returns the argument at the current index, modulo their number.
  Value get_cycle_argument(const Arguments& arguments) const;

  std::vector<Value> items_;
  int64_t recursion_depth_;
  size_t index_ = 0;
  std::optional<Value> last_changed_arguments_;  // arguments of the last call of loop.changed()
};

std::optional<Value> LoopContext::find_attribute(std::string_view name) {
  const auto bind_method = [&](std::string_view method, Function::Implementation implementation) {
    return Value(std::shared_ptr<Object>(std::make_shared<Function>(
        method, ParameterList{"*"}, implementation, Value(std::shared_ptr<Object>(shared_from_this())))));
  };
  const size_t num_items = items_.size();
  if (name == "index") return Value(index_ + 1);
  if (name == "index0") return Value(index_);
  if (name == "revindex") return Value(num_items - index_);
  if (name == "revindex0") return Value(num_items - index_ - 1);
  if (name == "first") return Value(index_ == 0);
  if (name == "last") return Value(index_ + 1 == num_items);
  if (name == "length") return Value(num_items);
  if (name == "depth") return Value(recursion_depth_ + 1);
  if (name == "depth0") return Value(recursion_depth_);
  if (name == "previtem") return index_ == 0 ? Value::undefined("the loop has no previous item") : items_[index_ - 1];
  if (name == "nextitem")
    return index_ + 1 >= num_items ? Value::undefined("the loop has no next item") : items_[index_ + 1];
  if (name == "changed") {
    return bind_method("loop.changed", [](RenderContext& context, const Value& self, const BoundArguments& args) {
      return static_cast<LoopContext&>(*self.object()).update_last_changed_arguments(args.arguments(), context.budget);
    });
  }
  if (name == "cycle") {
    return bind_method("loop.cycle", [](RenderContext& /*context*/, const Value& self, const BoundArguments& args) {
      return static_cast<LoopContext&>(*self.object()).get_cycle_argument(args.arguments());
    });
  }
  return std::nullopt;
}

std::vector<Value> LoopContext::release_values() {
  std::vector<Value> values = std::move(items_);
  items_.clear();
  if (last_changed_arguments_) values.push_back(std::move(*last_changed_arguments_));
  last_changed_arguments_.reset();
  return values;
}

Value LoopContext::update_last_changed_arguments(const Arguments& arguments, RenderBudget& budget) {
  if (!arguments.keyword.empty()) throw evaluation_error("loop.changed takes no keyword arguments");
  Value current = Value::tuple(arguments.positional);
  const bool is_changed = !last_changed_arguments_ || !is_equal(*last_changed_arguments_, current, budget);
  if (is_changed) last_changed_arguments_ = std::move(current);
  return Value(is_changed);
}

Value LoopContext::get_cycle_argument(const Arguments& arguments) const {
  if (arguments.positional.empty() || !arguments.keyword.empty()) throw evaluation_error("loop.cycle needs values");
  return arguments.positional[index_ % arguments.positional.size()];
}

/// A guard for the lifetime of a for statement. At its end, retains the loop in the context if a
/// variable still refers to it, because the loop may then be part of a reference cycle.
struct LoopGuard {
  RenderContext& context;
  const std::shared_ptr<LoopContext>& loop;
  ~LoopGuard() {
    if (loop.use_count() > 1) context.retained_objects.push_back(loop);
  }
};

/// A macro as a value, with the scope of its definition. `evaluator` and `definition` must outlive
/// it.
class Macro : public Object {
 public:
  Macro(Evaluator& evaluator, const MacroDefinition& definition, std::string_view name, std::shared_ptr<Scope> closure)
      : evaluator_(evaluator), definition_(definition), name_(name), closure_(std::move(closure)) {}

  std::string_view type_name() const override { return "Macro"; }
  bool is_callable() const override { return true; }
  std::optional<Value> find_attribute(std::string_view name) override {
    if (name == "name") return Value::text(std::string(name_));
    return std::nullopt;
  }
  Value call(RenderContext& /*context*/, const Arguments& arguments) override {
    return evaluator_.call_macro(definition_, closure_, arguments);
  }

 private:
  Evaluator& evaluator_;
  const MacroDefinition& definition_;
  std::string_view name_;
  std::shared_ptr<Scope> closure_;
};

}  // namespace

Evaluator::ControlFlow Evaluator::execute_node(const TemplateData& node) {
  context_.budget.charge_scan(node.text.size());
  RenderBudget::check_value_size(output_->size() + node.text.size());
  output_->append(node.text);
  return ControlFlow::kNormal;
}

void Evaluator::append_to_output(const Value& value) {
  append_str(*output_, value, context_.budget);
  RenderBudget::check_value_size(output_->size());
}

Evaluator::ControlFlow Evaluator::execute_node(const PrintStatement& node) {
  for (const auto& value : node.values) append_to_output(evaluate(*value));
  return ControlFlow::kNormal;
}

std::vector<Value> Evaluator::evaluate_loop_items(const ForStatement& node) {
  const auto sequence = to_sequence(evaluate(*node.items), context_.budget);
  context_.budget.charge_allocation(sequence->items.size() * sizeof(Value));
  if (!node.condition) return sequence->items;
  std::vector<Value> selected_items;
  for (const Value& item : sequence->items) {
    const ScopeGuard scope_guard(*this);
    assign_to_target(node.target, item);
    if (is_true(evaluate(*node.condition))) selected_items.push_back(item);
  }
  return selected_items;
}

Evaluator::ControlFlow Evaluator::execute_node(const ForStatement& node) {
  const auto loop = std::make_shared<LoopContext>(evaluate_loop_items(node), 0);
  const LoopGuard loop_guard{context_, loop};
  bool has_completed_iteration = false;
  for (size_t i = 0; i < loop->size(); ++i) {
    loop->set_index(i);
    ControlFlow control_flow = ControlFlow::kNormal;
    {
      const ScopeGuard scope_guard(*this);
      current_scope_->set(kLoopNameIndex, Value(std::shared_ptr<Object>(loop)));
      assign_to_target(node.target, loop->current_item());
      control_flow = execute(node.body);
    }
    // As in the code that Jinja2 generates: `else` runs unless an iteration reached its end.
    // Iterations that end with `continue` or `break` do not count.
    has_completed_iteration = has_completed_iteration || control_flow == ControlFlow::kNormal;
    if (control_flow == ControlFlow::kBreak) break;
  }
  if (has_completed_iteration || node.else_body.empty()) return ControlFlow::kNormal;
  const ScopeGuard scope_guard(*this);
  return execute(node.else_body);
}

Evaluator::ControlFlow Evaluator::execute_node(const IfStatement& node) {
  for (const auto& [condition, block] : node.branches) {
    if (is_true(evaluate(*condition))) return execute(block);
  }
  return execute(node.else_body);
}

void Evaluator::assign_to_target(const AssignmentTarget& target, const Value& value) {
  if (target.is_tuple) {
    const auto items = to_sequence(value, context_.budget);
    if (items->items.size() != target.elements.size()) {
      throw evaluation_error("cannot unpack {} values into {} names", items->items.size(), target.elements.size());
    }
    for (size_t i = 0; i < target.elements.size(); ++i) assign_to_target(target.elements[i], items->items[i]);
    return;
  }
  if (target.attribute.empty()) return current_scope_->set(target.name, value);
  const Value* namespace_value = current_scope_->find(target.name);
  auto* namespace_object = namespace_value == nullptr ? nullptr : dynamic_cast<Namespace*>(namespace_value->object());
  if (namespace_object == nullptr)
    throw evaluation_error("cannot set an attribute of \"{}\": it is not a namespace", tree_.names[target.name]);
  context_.budget.charge_allocation(sizeof(Value));
  namespace_object->set(target.attribute, value);
}

Evaluator::ControlFlow Evaluator::execute_node(const SetStatement& node) {
  assign_to_target(node.target, evaluate(*node.value));
  return ControlFlow::kNormal;
}

Value Evaluator::apply_filter(const Expression& filter, TextWithOrigins text) {
  const Value input = Value::text(std::move(text));
  const Value* outer_filter_block_input = std::exchange(filter_block_input_, &input);
  try {
    Value result = evaluate(filter);
    filter_block_input_ = outer_filter_block_input;
    return result;
  } catch (...) {
    filter_block_input_ = outer_filter_block_input;
    throw;
  }
}

Evaluator::ControlFlow Evaluator::execute_node(const SetBlock& node) {
  ControlFlow control_flow = ControlFlow::kNormal;
  TextWithOrigins output = render_block(node.body, control_flow);
  if (control_flow != ControlFlow::kNormal) return control_flow;
  assign_to_target(node.target,
                   node.filter ? apply_filter(*node.filter, std::move(output)) : Value::text(std::move(output)));
  return ControlFlow::kNormal;
}

Value Evaluator::make_macro_value(const MacroDefinition& macro) {
  return Value(std::shared_ptr<Object>(std::make_shared<Macro>(*this, macro, tree_.names[macro.name], current_scope_)));
}

Evaluator::ControlFlow Evaluator::execute_node(const MacroDefinition& node) {
  current_scope_->set(node.name, make_macro_value(node));
  return ControlFlow::kNormal;
}

Value Evaluator::call_macro(const MacroDefinition& macro, const std::shared_ptr<Scope>& closure,
                            const Arguments& arguments) {
  const NestingGuard nesting_guard(*this);
  const MacroSignature& signature = macro.signature;
  const std::string& name = tree_.names[macro.name];
  const size_t num_parameters = signature.parameters.size();
  std::vector<const Value*> parameter_values(num_parameters, nullptr);
  for (size_t i = 0; i < std::min(num_parameters, arguments.positional.size()); ++i)
    parameter_values[i] = &arguments.positional[i];
  std::vector<std::pair<Value, Value>> kwargs;
  Value caller = Value::undefined("No caller defined");
  for (const auto& [keyword_name, value] : arguments.keyword) {
    const std::string& key = keyword_name;  // clang 14 cannot capture a structured binding
    const auto parameter = std::find_if(signature.parameters.begin(), signature.parameters.end(),
                                        [&](size_t name_index) { return tree_.names[name_index] == key; });
    const auto index = static_cast<size_t>(parameter - signature.parameters.begin());
    if (index < num_parameters && parameter_values[index] == nullptr) {
      parameter_values[index] = &value;
    } else if (signature.takes_caller && key == "caller") {
      caller = value;
    } else if (signature.takes_kwargs) {
      insert_or_assign(kwargs, Value::text(key), value);
    } else {
      throw evaluation_error("the macro {} takes no argument \"{}\"", name, key);
    }
  }
  if (arguments.positional.size() > num_parameters && !signature.takes_varargs) {
    throw evaluation_error("the macro {} takes at most {} arguments, not {}", name, num_parameters,
                           arguments.positional.size());
  }

  TextWithOrigins output;
  TextWithOrigins* outer_output = std::exchange(output_, &output);
  try {
    const ScopeGuard scope_guard(*this, closure);
    if (signature.takes_caller) current_scope_->set(kCallerNameIndex, caller);
    if (signature.takes_kwargs)
      current_scope_->set(kKwargsNameIndex, Value(std::make_shared<const Dict>(std::move(kwargs))));
    if (signature.takes_varargs) {
      const auto first_vararg_index =
          static_cast<std::ptrdiff_t>(std::min(num_parameters, arguments.positional.size()));
      current_scope_->set(kVarargsNameIndex, Value::tuple({arguments.positional.begin() + first_vararg_index,
                                                           arguments.positional.end()}));
    }
    const size_t num_required_parameters = num_parameters - signature.default_values.size();
    for (size_t i = 0; i < num_parameters; ++i) {
      if (parameter_values[i] != nullptr) current_scope_->set(signature.parameters[i], *parameter_values[i]);
    }
    for (size_t i = 0; i < num_parameters; ++i) {
      if (parameter_values[i] != nullptr) continue;
      const std::string& parameter = tree_.names[signature.parameters[i]];
      current_scope_->set(signature.parameters[i],
                          i >= num_required_parameters
                              ? evaluate(*signature.default_values[i - num_required_parameters])
                              : Value::undefined(fmt::format("parameter '{}' was not provided", parameter)));
    }
    execute(macro.body);
  } catch (...) {
    output_ = outer_output;
    throw;
  }
  output_ = outer_output;
  context_.budget.charge_allocation(output.size());
  return Value::text(std::move(output));
}

Evaluator::ControlFlow Evaluator::execute_node(const CallBlock& node) {
  const Value caller = make_macro_value(node.caller);
  append_to_output(call(std::get<Call>(node.call->node), &caller));
  return ControlFlow::kNormal;
}

Evaluator::ControlFlow Evaluator::execute_node(const FilterBlock& node) {
  ControlFlow control_flow = ControlFlow::kNormal;
  TextWithOrigins output = render_block(node.body, control_flow);
  if (control_flow == ControlFlow::kNormal) append_to_output(apply_filter(*node.filter, std::move(output)));
  return control_flow;
}

Evaluator::ControlFlow Evaluator::execute_node(const WithStatement& node) {
  std::vector<Value> values;
  for (const auto& [target, expression] : node.assignments) values.push_back(evaluate(*expression));
  const ScopeGuard scope_guard(*this);
  for (size_t i = 0; i < values.size(); ++i) assign_to_target(node.assignments[i].first, values[i]);
  return execute(node.body);
}

Evaluator::ControlFlow Evaluator::execute_node(const GenerationBlock& node) {
  ControlFlow control_flow = ControlFlow::kNormal;
  TextWithOrigins output = render_block(node.body, control_flow);
  output.mark_as_generated();
  output_->append(output);
  RenderBudget::check_value_size(output_->size());
  return control_flow;
}

Evaluator::ControlFlow Evaluator::execute_node(const BreakStatement& /*node*/) {
  return ControlFlow::kBreak;
}

Evaluator::ControlFlow Evaluator::execute_node(const ContinueStatement& /*node*/) {
  return ControlFlow::kContinue;
}

}  // namespace vlmtrain::text::jinja
