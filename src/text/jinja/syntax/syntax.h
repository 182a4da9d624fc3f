#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/method_table.h"
#include "text/jinja/runtime/operators.h"

namespace vlmtrain::text::jinja {

/// What the parser makes of a template. Names are numbers into Tree::names.

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Block = std::vector<Statement>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keyword;
  ExpressionPtr star_args;    ///< after *, or null
  ExpressionPtr star_kwargs;  ///< after **, or null
};

struct Literal {
  Value value;
};
struct NameReference {
  size_t name;
};
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
struct LogicalExpression {
  bool is_and;
  ExpressionPtr left;
  ExpressionPtr right;
};
struct Concatenation {
  std::vector<ExpressionPtr> elements;
};
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
  ExpressionPtr begin;  ///< or null, as the others
  ExpressionPtr end;
  ExpressionPtr step;
};
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterCall {
  const Builtin* filter;  ///< null where there is none of that name
  std::string name;
  ExpressionPtr operand;  ///< null in a filter block: what is in the block
  CallArguments arguments;
};
struct TestCall {
  const Builtin* test;  ///< null where there is none of that name
  std::string name;
  ExpressionPtr operand;
  CallArguments arguments;
};

struct Expression {
  int line;
  int height;  ///< of what is below it
  std::variant<Literal, NameReference, ListLiteral, DictLiteral, UnaryExpression, BinaryExpression, LogicalExpression,
               Concatenation, ComparisonChain, ConditionalExpression, AttributeAccess, ItemAccess, SliceAccess, Call,
               FilterCall, TestCall>
      node;
};

/// What a value is given to: a name, an attribute of a namespace, or several of them.
struct Target {
  size_t name = 0;
  std::string attribute;  ///< "" for the name itself
  std::vector<Target> elements;
  bool is_tuple = false;
};

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
/// A macro, or the body of a call block.
struct Signature {
  std::vector<size_t> parameters;
  std::vector<ExpressionPtr> defaults;  ///< of the last ones
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

struct Statement {
  int line;
  std::variant<TemplateData, Print, For, If, Set, SetBlock, MacroDefinition, CallBlock, FilterBlock, With,
               GenerationBlock, Break, Continue>
      node;
};

/// A template, with the names that it uses.
struct SyntaxTree {
  std::string source_name;
  std::vector<std::string> names;
  std::map<std::string, size_t, std::less<>> name_indices;  ///< of the names
  /// A function that is there from the start, for each name.
  std::vector<Value> functions;
  Block body;

  size_t intern_name(std::string_view name);
};

/// Names with a meaning of their own.
inline constexpr size_t kLoopName = 0;
inline constexpr size_t kCallerName = 1;
inline constexpr size_t kVarargsName = 2;
inline constexpr size_t kKwargsName = 3;

}  // namespace vlmtrain::text::jinja
