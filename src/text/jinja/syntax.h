#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/method_table.h"
#include "text/jinja/operators.h"

namespace vlmtrain::text::jinja {

/// What the parser makes of a template. Names are numbers into Tree::names.

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Block = std::vector<Statement>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keyword;
  ExpressionPtr all_positional;  ///< after *, or null
  ExpressionPtr all_keyword;     ///< after **, or null
};

struct Literal {
  Value value;
};
struct NameUse {
  size_t name;
};
struct ListOf {
  std::vector<ExpressionPtr> items;
  bool is_tuple;
};
struct DictOf {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
enum class Unary { kNot, kNegative, kPositive };
struct UnaryUse {
  Unary unary;
  ExpressionPtr operand;
};
struct BinaryUse {
  Binary binary;
  ExpressionPtr left;
  ExpressionPtr right;
};
struct Logical {
  bool is_and;
  ExpressionPtr left;
  ExpressionPtr right;
};
struct Concatenation {
  std::vector<ExpressionPtr> parts;
};
struct ComparisonChain {
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
};
struct Conditional {
  ExpressionPtr condition;
  ExpressionPtr then;
  ExpressionPtr otherwise;  ///< or null
};
struct AttributeOf {
  ExpressionPtr object;
  std::string name;
};
struct ItemOf {
  ExpressionPtr object;
  ExpressionPtr key;
};
struct SliceOf {
  ExpressionPtr object;
  ExpressionPtr begin;  ///< or null, as the others
  ExpressionPtr end;
  ExpressionPtr step;
};
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterUse {
  const Method* filter;  ///< null where there is none of that name
  std::string name;
  ExpressionPtr operand;  ///< null in a filter block: what is in the block
  CallArguments arguments;
};
struct TestUse {
  const Method* test;  ///< null where there is none of that name
  std::string name;
  ExpressionPtr operand;
  CallArguments arguments;
};

struct Expression {
  int line;
  int height;  ///< of what is below it
  std::variant<Literal, NameUse, ListOf, DictOf, UnaryUse, BinaryUse, Logical, Concatenation, ComparisonChain,
               Conditional, AttributeOf, ItemOf, SliceOf, Call, FilterUse, TestUse>
      node;
};

/// What a value is given to: a name, an attribute of a namespace, or several of them.
struct Target {
  size_t name = 0;
  std::string attribute;  ///< "" for the name itself
  std::vector<Target> parts;
  bool is_tuple = false;
};

struct Data {
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
  Block otherwise;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filtered;  ///< or null
  Block body;
};
/// A macro, or the body of a call block.
struct Signature {
  std::vector<size_t> parameters;
  std::vector<ExpressionPtr> defaults;  ///< of the last ones
  bool takes_caller = false;
  bool takes_more_positional = false;
  bool takes_more_keyword = false;
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
  ExpressionPtr filtered;
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Block body;
};
struct Generation {
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line;
  std::variant<Data, Print, For, If, Set, SetBlock, MacroDefinition, CallBlock, FilterBlock, With, Generation, Break,
               Continue>
      node;
};

/// A template, with the names that it uses.
struct Tree {
  std::string source_name;
  std::vector<std::string> names;
  std::map<std::string, size_t, std::less<>> numbers;  ///< of the names
  /// A function that is there from the start, for each name.
  std::vector<Value> functions;
  Block body;

  size_t number_of_name(std::string_view name);
};

/// Names with a meaning of their own.
inline constexpr size_t kLoopName = 0;
inline constexpr size_t kCallerName = 1;
inline constexpr size_t kVarargsName = 2;
inline constexpr size_t kKwargsName = 3;

}  // namespace vlmtrain::text::jinja
