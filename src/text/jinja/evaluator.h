#pragma once

#include <memory>

#include "text/jinja/runtime/object.h"
#include "text/jinja/scope.h"
#include "text/jinja/syntax/syntax.h"
#include "text/jinja/template.h"

namespace vlmtrain::text::jinja {

/// Renders a tree once.
class Evaluator {
 public:
  Evaluator(const SyntaxTree& tree, const RenderSettings& settings) : tree_(tree), context_{settings, {}, {}} {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  ~Evaluator();

  /// Throws TemplateError.
  TrackedText render(const std::vector<std::pair<std::string, Value>>& variables);

  /// What a macro does when it is called.
  Value call_macro(const MacroDefinition& macro, const std::shared_ptr<Scope>& closure, const Arguments& arguments);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class ScopeGuard;
  class NestingGuard;

  Value evaluate(const Expression& expression);
  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  /// What a block writes, with names of its own.
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

  Value call(const Call& node, const Value* caller);
  Arguments evaluate_arguments(const CallArguments& call_arguments);
  Value apply_filter(const Expression& filter, TrackedText text);
  void assign(const Target& target, const Value& value);
  void print(const Value& value);
  Value make_undefined_name(size_t name) const;
  Value make_macro_value(const MacroDefinition& macro);
  std::vector<Value> evaluate_loop_items(const For& node);

  const SyntaxTree& tree_;
  Context context_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> retained_scopes_;  // that macros still refer to
  TrackedText* out_ = nullptr;
  const Value* filter_block_input_ = nullptr;  // of a filter block
  int nesting_ = 0;
};

}  // namespace vlmtrain::text::jinja
