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

// The syntax tree of a template. Names are indices into SyntaxTree::names. Line numbers begin at 1.

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Block = std::vector<Statement>;

/// The arguments of a call.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keyword;
  ExpressionPtr star_args;    ///< after *; or null
  ExpressionPtr star_kwargs;  ///< after **; or null
};

struct Literal {
  Value value;
};
struct NameReference {
  size_t name;
};
/// A list or a tuple.
struct ListLiteral {
  std::vector<ExpressionPtr> items;
  bool is_tuple;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
enum class UnaryOperator { kNot, kNegative, kPositive };
struct UnaryExpression {
  UnaryOperator op;
  ExpressionPtr operand;
};
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
/// Operands of `~`.
struct Concatenation {
  std::vector<ExpressionPtr> elements;
};
/// `first < a <= b …`
struct ComparisonChain {
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> comparisons;
};
struct ConditionalExpression {
  ExpressionPtr condition;
  ExpressionPtr then_value;
  ExpressionPtr else_value;  ///< or null
};
struct AttributeAccess {
  ExpressionPtr object;
  std::string name;
};
struct ItemAccess {
  ExpressionPtr object;
  ExpressionPtr key;
};
struct SliceAccess {
  ExpressionPtr object;
  ExpressionPtr begin;  ///< or null, as `end` and `step`
  ExpressionPtr end;
  ExpressionPtr step;
};
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterCall {
  const Builtin* filter;  ///< null if the name is unknown
  std::string name;
  ExpressionPtr operand;  ///< null in a filter block, whose content is the operand
  CallArguments arguments;
};
struct TestCall {
  const Builtin* test;  ///< null if the name is unknown
  std::string name;
  ExpressionPtr operand;
  CallArguments arguments;
};

/// An expression.
struct Expression {
  int line;
  int height;  ///< of the tree below this node, itself included
  std::variant<Literal, NameReference, ListLiteral, DictLiteral, UnaryExpression, BinaryExpression, LogicalExpression,
               Concatenation, ComparisonChain, ConditionalExpression, AttributeAccess, ItemAccess, SliceAccess, Call,
               FilterCall, TestCall>
      node;
};

/// The left side of an assignment: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  size_t name = 0;
  std::string attribute;  ///< of the namespace `name`; empty: the name itself
  std::vector<Target> elements;
  bool is_tuple = false;
};

/// Text outside of tags.
struct TemplateData {
  std::string text;
};
struct Print {
  std::vector<ExpressionPtr> values;
};
struct For {
  Target target;
  ExpressionPtr items;
  ExpressionPtr condition;  ///< or null
  Block body;
  Block else_body;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block else_body;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  ///< or null
  Block body;
};
/// The parameters of a macro or of the body of a call block.
struct Signature {
  std::vector<size_t> parameters;
  std::vector<ExpressionPtr> defaults;  ///< of the last parameters
  bool takes_caller = false;
  bool takes_varargs = false;
  bool takes_kwargs = false;
};
struct MacroDefinition {
  size_t name;
  Signature signature;
  Block body;
};
struct CallBlock {
  ExpressionPtr call;
  MacroDefinition caller;
};
struct FilterBlock {
  ExpressionPtr filter;
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Block body;
};
struct GenerationBlock {
  Block body;
};
struct Break {};
struct Continue {};

/// A statement.
struct Statement {
  int line;
  std::variant<TemplateData, Print, For, If, Set, SetBlock, MacroDefinition, CallBlock, FilterBlock, With,
               GenerationBlock, Break, Continue>
      node;
};

/// The syntax tree of a template, and the table of its names.
struct SyntaxTree {
  std::string source_name;
  std::vector<std::string> names;
  std::map<std::string, size_t, std::less<>> name_indices;  ///< inverse of `names`
  /// The global function of each name, or undefined.
  std::vector<Value> functions;
  Block body;

  /// Returns the index of `name`, which it adds if it is new.
  size_t intern_name(std::string_view name) {
    const auto [entry, is_inserted] = name_indices.try_emplace(std::string(name), names.size());
    if (is_inserted) {
      names.emplace_back(name);
      const Builtin* builtin = find_function(name);
      functions.push_back(builtin == nullptr ? Value()
                                             : Value(std::shared_ptr<Object>(std::make_shared<Function>(
                                                   builtin->name, builtin->parameters, builtin->body))));
    }
    return entry->second;
  }
};

/// Indices of the names that the evaluator sets.
inline constexpr size_t kLoopName = 0;
inline constexpr size_t kCallerName = 1;
inline constexpr size_t kVarargsName = 2;
inline constexpr size_t kKwargsName = 3;

}  // namespace vlmtrain::text::jinja
