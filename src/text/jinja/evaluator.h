#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "text/jinja/runtime/object.h"
#include "text/jinja/syntax/syntax.h"
#include "text/jinja/template.h"

namespace vlmtrain::text::jinja {

/// The variables of a block, which hide those of enclosing blocks. Names are indices into
/// SyntaxTree::names.
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

  std::vector<std::pair<size_t, Value>> variables;
  std::shared_ptr<Scope> parent;
};

/// An evaluator of one syntax tree for one render. `tree` and `settings` must outlive it.
class Evaluator {
 public:
  Evaluator(const SyntaxTree& tree, const RenderSettings& settings) : tree_(tree), context_{settings, {}, {}} {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  ~Evaluator();

  /// Returns the output for these variables. Throws TemplateError.
  TrackedText render(const std::vector<std::pair<std::string, Value>>& variables);

  /// Returns the output of a macro called with `arguments`, in the scope of its definition.
  Value call_macro(const MacroDefinition& macro, const std::shared_ptr<Scope>& closure, const Arguments& arguments);

 private:
  /// The statement that ended a block.
  enum class Flow { kNormal, kBreak, kContinue };
  class ScopeGuard;
  class NestingGuard;

  /// Converts an EvaluationError to a TemplateError of the innermost line.
  Value evaluate(const Expression& expression);
  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  /// Returns the output of a block, executed in a new scope.
  TrackedText render_block(const Block& block, Flow& flow);

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

  Flow execute_node(const TemplateData& node);
  Flow execute_node(const Print& node);
  Flow execute_node(const For& node);
  Flow execute_node(const If& node);
  Flow execute_node(const Set& node);
  Flow execute_node(const SetBlock& node);
  Flow execute_node(const MacroDefinition& node);
  Flow execute_node(const CallBlock& node);
  Flow execute_node(const FilterBlock& node);
  Flow execute_node(const With& node);
  Flow execute_node(const GenerationBlock& node);
  Flow execute_node(const Break& node);
  Flow execute_node(const Continue& node);

  /// `caller`: the body of a call block, or null.
  Value call(const Call& node, const Value* caller);
  Arguments evaluate_arguments(const CallArguments& call_arguments);
  /// Returns the result of the filters of a block for its output.
  Value apply_filter(const Expression& filter, TrackedText text);
  void assign(const Target& target, const Value& value);
  void print(const Value& value);
  Value make_undefined_name(size_t name) const;
  Value make_macro_value(const MacroDefinition& macro);
  /// Returns the items that satisfy the loop's condition.
  std::vector<Value> evaluate_loop_items(const For& node);

  const SyntaxTree& tree_;
  Context context_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> retained_scopes_;  // scopes that macros refer to
  TrackedText* out_ = nullptr;
  const Value* filter_block_input_ = nullptr;  // input of the innermost filter block
  int nesting_ = 0;
};

/// A new scope for the lifetime of the guard.
class Evaluator::ScopeGuard {
 public:
  ScopeGuard(Evaluator& evaluator, std::shared_ptr<Scope> parent) : evaluator_(evaluator), outer_(evaluator.scope_) {
    evaluator_.scope_ = std::make_shared<Scope>(std::move(parent));
  }
  explicit ScopeGuard(Evaluator& evaluator) : ScopeGuard(evaluator, evaluator.scope_) {}
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  ~ScopeGuard() {
    // A macro defined in the scope may refer to it from within, a cycle that ~Evaluator breaks.
    if (evaluator_.scope_.use_count() > 1) evaluator_.retained_scopes_.push_back(evaluator_.scope_);
    evaluator_.scope_ = std::move(outer_);
  }

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_;
};

/// One level of nested evaluations for the lifetime of the guard. Throws EvaluationError above
/// kMaxNesting.
class Evaluator::NestingGuard {
 public:
  explicit NestingGuard(Evaluator& evaluator) : evaluator_(evaluator) {
    evaluator_.context_.budget.charge_steps();
    if (evaluator_.nesting_ >= kMaxNesting)
      throw evaluation_error("calls and blocks are nested more than {} deep", kMaxNesting);
    ++evaluator_.nesting_;
  }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;
  ~NestingGuard() { --evaluator_.nesting_; }

 private:
  Evaluator& evaluator_;
};

}  // namespace vlmtrain::text::jinja
