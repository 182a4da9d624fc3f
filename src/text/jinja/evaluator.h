#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "text/jinja/runtime/object.h"
#include "text/jinja/syntax/syntax.h"
#include "text/jinja/template.h"

namespace vlmtrain::text::jinja {

/// The variables of a block, which hide variables of enclosing blocks with the same name. Names are
/// indices into SyntaxTree::names.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> enclosing) : parent(std::move(enclosing)) {}

  /// Returns the variable in the innermost scope that has it, or null.
  const Value* find(size_t name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
      for (const auto& [variable_name, value] : scope->variables) {
        if (variable_name == name) return &value;
      }
    }
    return nullptr;
  }

  /// Sets a variable of this scope.
  void set(size_t name, Value value) {
    for (auto& [variable_name, stored_value] : variables) {
      if (variable_name == name) {
        stored_value = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }

  std::vector<std::pair<size_t, Value>> variables;  ///< a list, because most scopes have few variables
  std::shared_ptr<Scope> parent;                    ///< scope of the enclosing block, or null
};

/// An evaluator of a syntax tree. Each object serves one render. `tree` and `settings` must outlive
/// it.
class Evaluator {
 public:
  Evaluator(const SyntaxTree& tree, const RenderSettings& settings) : tree_(tree), context_{settings, {}, {}} {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  ~Evaluator();

  /// Returns the output of the template with these variables. Call it once. Throws TemplateError.
  TextWithOrigins render(const std::vector<std::pair<std::string, Value>>& variables);

  /// Returns the output of `macro` called with `arguments`. `closure` is the scope in which the
  /// macro was defined. Throws EvaluationError or TemplateError.
  Value call_macro(const MacroDefinition& macro, const std::shared_ptr<Scope>& closure, const Arguments& arguments);

 private:
  /// How the execution of a statement or block ended: normally, or by `break` or `continue`.
  enum class ControlFlow { kNormal, kBreak, kContinue };
  class ScopeGuard;
  class NestingGuard;

  /// Evaluates or executes a node. Each function but execute(Block) converts an EvaluationError to
  /// a TemplateError with the line of the innermost node.
  Value evaluate(const Expression& expression);
  ControlFlow execute(const Block& block);
  ControlFlow execute(const Statement& statement);
  /// Returns the output of a block, executed in a new scope. Sets `control_flow` to how the block
  /// ended.
  TextWithOrigins render_block(const Block& block, ControlFlow& control_flow);

  Value evaluate_node(const Literal& node);
  Value evaluate_node(const NameReference& node);
  Value evaluate_node(const ListLiteral& node);
  Value evaluate_node(const DictLiteral& node);
  Value evaluate_node(const UnaryExpression& node);
  Value evaluate_node(const BinaryExpression& node);
  Value evaluate_node(const LogicalExpression& node);
  Value evaluate_node(const Concatenation& node);
  Value evaluate_node(const ComparisonChain& node);
  Value evaluate_node(const ConditionalExpression& node);
  Value evaluate_node(const AttributeAccess& node);
  Value evaluate_node(const ItemAccess& node);
  Value evaluate_node(const SliceAccess& node);
  Value evaluate_node(const Call& node);
  Value evaluate_node(const FilterCall& node);
  Value evaluate_node(const TestCall& node);

  ControlFlow execute_node(const TemplateData& node);
  ControlFlow execute_node(const PrintStatement& node);
  ControlFlow execute_node(const ForStatement& node);
  ControlFlow execute_node(const IfStatement& node);
  ControlFlow execute_node(const SetStatement& node);
  ControlFlow execute_node(const SetBlock& node);
  ControlFlow execute_node(const MacroDefinition& node);
  ControlFlow execute_node(const CallBlock& node);
  ControlFlow execute_node(const FilterBlock& node);
  ControlFlow execute_node(const WithStatement& node);
  ControlFlow execute_node(const GenerationBlock& node);
  ControlFlow execute_node(const BreakStatement& node);
  ControlFlow execute_node(const ContinueStatement& node);

  /// Calls `node.callee`. `caller` is the macro of a call block that becomes the argument `caller`,
  /// or null.
  Value call(const Call& node, const Value* caller);
  Arguments evaluate_arguments(const CallArguments& call_arguments);
  /// Returns the result of `filter`, the filter chain of a block, for `text`, the output of the
  /// block.
  Value apply_filter(const Expression& filter, TextWithOrigins text);
  /// Assigns `value` to `target` in the current scope. Unpacks it if `target` is a tuple.
  void assign_to_target(const AssignmentTarget& target, const Value& value);
  /// Appends str(value) to the output.
  void append_to_output(const Value& value);
  /// Returns the undefined value of a name without a value.
  Value make_undefined_value(size_t name) const;
  Value make_macro_value(const MacroDefinition& macro);
  /// Returns the items of a for statement that satisfy its condition.
  std::vector<Value> evaluate_loop_items(const ForStatement& node);

  const SyntaxTree& tree_;
  RenderContext context_;
  std::shared_ptr<Scope> current_scope_;
  std::vector<std::shared_ptr<Scope>> retained_scopes_;  // scopes that macros refer to
  TextWithOrigins* output_ = nullptr;                    // output of the innermost block or macro
  const Value* filter_block_input_ = nullptr;            // input of the innermost filter block
  int nesting_depth_ = 0;                                // number of NestingGuards
};

/// A guard that makes a new scope the current one for its lifetime.
class Evaluator::ScopeGuard {
 public:
  ScopeGuard(Evaluator& evaluator, std::shared_ptr<Scope> parent)
      : evaluator_(evaluator), outer_scope_(evaluator.current_scope_) {
    evaluator_.current_scope_ = std::make_shared<Scope>(std::move(parent));
  }
  explicit ScopeGuard(Evaluator& evaluator) : ScopeGuard(evaluator, evaluator.current_scope_) {}
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  ~ScopeGuard() {
    // A macro that is defined in the scope refers to it: a reference cycle, which ~Evaluator
    // breaks.
    if (evaluator_.current_scope_.use_count() > 1) evaluator_.retained_scopes_.push_back(evaluator_.current_scope_);
    evaluator_.current_scope_ = std::move(outer_scope_);
  }

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_scope_;
};

/// A guard that counts one level of nested evaluations for its lifetime, and one step. Throws
/// EvaluationError above kMaxEvaluationDepth.
class Evaluator::NestingGuard {
 public:
  explicit NestingGuard(Evaluator& evaluator) : evaluator_(evaluator) {
    evaluator_.context_.budget.charge_steps();
    if (evaluator_.nesting_depth_ >= kMaxEvaluationDepth)
      throw evaluation_error("calls and blocks are nested more than {} deep", kMaxEvaluationDepth);
    ++evaluator_.nesting_depth_;
  }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;
  ~NestingGuard() { --evaluator_.nesting_depth_; }

 private:
  Evaluator& evaluator_;
};

}  // namespace vlmtrain::text::jinja
