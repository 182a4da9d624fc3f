#pragma once

#include <memory>

#include "text/jinja/object.h"
#include "text/jinja/scope.h"
#include "text/jinja/syntax.h"
#include "text/jinja/template.h"

namespace vlmtrain::text::jinja {

/// Renders a tree once.
class Evaluator {
 public:
  Evaluator(const Tree& tree, const RenderSettings& settings) : tree_(tree), context_{settings, {}, {}} {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  ~Evaluator();

  /// Throws TemplateError.
  MarkedText render(const std::vector<std::pair<std::string, Value>>& variables);

  /// What a macro does when it is called.
  Value call_macro(const MacroDefinition& macro, const std::shared_ptr<Scope>& closure, const Arguments& arguments);

 private:
  enum class Flow { kOn, kBreak, kContinue };
  class Inside;
  class Nesting;

  Value evaluate(const Expression& expression);
  Flow run(const Block& block);
  Flow run(const Statement& statement);
  /// What a block writes, with names of its own.
  MarkedText written_by(const Block& block, Flow& flow);

  Value operator_of(const Literal& node);
  Value operator_of(const NameUse& node);
  Value operator_of(const ListOf& node);
  Value operator_of(const DictOf& node);
  Value operator_of(const UnaryUse& node);
  Value operator_of(const BinaryUse& node);
  Value operator_of(const Logical& node);
  Value operator_of(const Concatenation& node);
  Value operator_of(const ComparisonChain& node);
  Value operator_of(const Conditional& node);
  Value operator_of(const AttributeOf& node);
  Value operator_of(const ItemOf& node);
  Value operator_of(const SliceOf& node);
  Value operator_of(const Call& node);
  Value operator_of(const FilterUse& node);
  Value operator_of(const TestUse& node);

  Flow perform(const Data& node);
  Flow perform(const Print& node);
  Flow perform(const For& node);
  Flow perform(const If& node);
  Flow perform(const Set& node);
  Flow perform(const SetBlock& node);
  Flow perform(const MacroDefinition& node);
  Flow perform(const CallBlock& node);
  Flow perform(const FilterBlock& node);
  Flow perform(const With& node);
  Flow perform(const Generation& node);
  Flow perform(const Break& node);
  Flow perform(const Continue& node);

  Value call(const Call& node, const Value* caller);
  Arguments arguments_of(const CallArguments& given);
  Value filtered(const Expression& filter, MarkedText text);
  void assign(const Target& target, const Value& value);
  void print(const Value& value);
  Value undefined_name(size_t name) const;
  Value macro_value(const MacroDefinition& macro);
  std::vector<Value> items_for(const For& node);

  const Tree& tree_;
  Context context_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> kept_scopes_;  // that macros still refer to
  MarkedText* out_ = nullptr;
  const Value* block_input_ = nullptr;  // of a filter block
  int nesting_ = 0;
};

}  // namespace vlmtrain::text::jinja
