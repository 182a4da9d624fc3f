#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/operators.h"

namespace vlmtrain::text::jinja {

// The syntax tree of a template. Fields `name` of type size_t are indices into SyntaxTree::names.
// Line numbers begin at 1.

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Block = std::vector<Statement>;

/// The unevaluated arguments of a call.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keyword;
  ExpressionPtr star_args;    ///< expression after *, or null
  ExpressionPtr star_kwargs;  ///< expression after **, or null
};

/// A constant: a text, a number, a boolean or None.
struct Literal {
  Value value;
};
/// The value of a variable.
struct NameReference {
  size_t name;
};
/// A list or a tuple.
struct ListLiteral {
  std::vector<ExpressionPtr> items;
  bool is_tuple;
};
/// A dict, `{key: value, …}`.
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
/// The operators with one operand: `not`, `-` and `+`.
enum class UnaryOperator { kNot, kNegative, kPositive };
/// An operator with one operand.
struct UnaryExpression {
  UnaryOperator op;
  ExpressionPtr operand;
};
/// An arithmetic operator with two operands.
struct BinaryExpression {
  BinaryOperator op;
  ExpressionPtr left;
  ExpressionPtr right;
};
/// `and` or `or`.
struct LogicalExpression {
  bool is_and;
  ExpressionPtr left;
  ExpressionPtr right;
};
/// `a ~ b ~ …`, which joins the operands as strings.
struct Concatenation {
  std::vector<ExpressionPtr> elements;
};
/// `first_operand < a <= b …`
struct ComparisonChain {
  ExpressionPtr first_operand;
  std::vector<std::pair<ComparisonOperator, ExpressionPtr>> comparisons;
};
/// `then_value if condition else else_value`
struct ConditionalExpression {
  ExpressionPtr condition;
  ExpressionPtr then_value;
  ExpressionPtr else_value;  ///< may be null
};
/// `object.name`
struct AttributeAccess {
  ExpressionPtr object;
  std::string name;
};
/// `object[key]`
struct ItemAccess {
  ExpressionPtr object;
  ExpressionPtr key;
};
/// `object[begin:end:step]`
struct SliceAccess {
  ExpressionPtr object;
  ExpressionPtr begin;  ///< `begin`, `end` and `step` may be null
  ExpressionPtr end;
  ExpressionPtr step;
};
/// A call of a macro, a method or a global function.
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
/// `value | filter(…)`
struct FilterCall {
  const Builtin* filter;  ///< null if the name is unknown
  std::string name;
  ExpressionPtr operand;  ///< null in a filter or set block, whose output is the operand
  CallArguments arguments;
};
/// `value is test(…)`
struct TestCall {
  const Builtin* test;  ///< null if the name is unknown
  std::string name;
  ExpressionPtr operand;
  CallArguments arguments;
};

/// An expression.
struct Expression {
  int line;
  int height;  ///< height of the tree with this node as root, 1 for a leaf
  std::variant<Literal, NameReference, ListLiteral, DictLiteral, UnaryExpression, BinaryExpression, LogicalExpression,
               Concatenation, ComparisonChain, ConditionalExpression, AttributeAccess, ItemAccess, SliceAccess, Call,
               FilterCall, TestCall>
      node;
};

/// The left side of an assignment: a name, an attribute of a namespace, or (with `is_tuple`) a
/// tuple of targets.
struct AssignmentTarget {
  size_t name = 0;
  std::string attribute;                   ///< attribute of the namespace `name`; empty: the target is the name itself
  std::vector<AssignmentTarget> elements;  ///< of a tuple
  bool is_tuple = false;
};

/// Text outside of tags.
struct TemplateData {
  std::string text;
};
/// `{{ value }}`
struct PrintStatement {
  std::vector<ExpressionPtr> values;
};
/// A for statement. `else_body` is rendered if no item passes the condition.
struct ForStatement {
  AssignmentTarget target;
  ExpressionPtr items;
  ExpressionPtr condition;  ///< may be null
  Block body;
  Block else_body;
};
/// An if statement, with its elif branches.
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block else_body;
};
/// `{% set target = value %}`
struct SetStatement {
  AssignmentTarget target;
  ExpressionPtr value;
};
/// A set block, which assigns its rendered body.
struct SetBlock {
  AssignmentTarget target;
  ExpressionPtr filter;  ///< may be null
  Block body;
};
/// The parameters of a macro or of the body of a call block.
struct MacroSignature {
  std::vector<size_t> parameters;
  std::vector<ExpressionPtr> default_values;  ///< default values of the last parameters
  /// Whether calls may pass `caller`, and positional or keyword arguments beyond `parameters`.
  bool takes_caller = false;
  bool takes_varargs = false;
  bool takes_kwargs = false;
};
/// A macro statement.
struct MacroDefinition {
  size_t name;
  MacroSignature signature;
  Block body;
};
/// A call block, which passes its body to a macro as `caller`.
struct CallBlock {
  ExpressionPtr call;
  MacroDefinition caller;
};
/// A filter block, which prints its filtered body.
struct FilterBlock {
  ExpressionPtr filter;
  Block body;
};
/// A with statement, whose assignments are visible only in its body.
struct WithStatement {
  std::vector<std::pair<AssignmentTarget, ExpressionPtr>> assignments;
  Block body;
};
/// A generation block, whose output is text that the model learns to generate.
struct GenerationBlock {
  Block body;
};
/// `{% break %}`
struct BreakStatement {};
/// `{% continue %}`
struct ContinueStatement {};

/// A statement.
struct Statement {
  int line;
  std::variant<TemplateData, PrintStatement, ForStatement, IfStatement, SetStatement, SetBlock, MacroDefinition,
               CallBlock, FilterBlock, WithStatement, GenerationBlock, BreakStatement, ContinueStatement>
      node;
};

/// The syntax tree of a template, and the table of its names.
struct SyntaxTree {
  std::string source_name;
  std::vector<std::string> names;
  std::map<std::string, size_t, std::less<>> name_indices;  ///< inverse of `names`
  /// The global function of each name in `names`, or undefined.
  std::vector<Value> global_functions_by_name;
  Block body;

  /// Returns the index of `name`. Adds the name if it is new.
  size_t intern_name(std::string_view name) {
    const auto [entry, is_inserted] = name_indices.try_emplace(std::string(name), names.size());
    if (is_inserted) {
      names.emplace_back(name);
      const Builtin* builtin = find_global_function(name);
      global_functions_by_name.push_back(builtin == nullptr
                                             ? Value()
                                             : Value(std::shared_ptr<Object>(std::make_shared<Function>(
                                                   builtin->name, builtin->parameters, builtin->implementation))));
    }
    return entry->second;
  }
};

/// Indices of the names that the evaluator sets. The parser adds these names first.
inline constexpr size_t kLoopNameIndex = 0;
inline constexpr size_t kCallerNameIndex = 1;
inline constexpr size_t kVarargsNameIndex = 2;
inline constexpr size_t kKwargsNameIndex = 3;

}  // namespace vlmtrain::text::jinja
