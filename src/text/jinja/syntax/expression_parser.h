#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/syntax/lexer.h"
#include "text/jinja/syntax/syntax.h"

namespace vlmtrain::text::jinja {

/// An occurrence of a name: a read, or an assignment.
struct NameAccess {
  size_t name;
  bool is_store;
  int line;
};

/// Returns the height of the tree, 0 for null.
inline int get_height(const Expression* expression) {
  return expression == nullptr ? 0 : expression->height;
}

/// Returns the height of the tallest argument.
inline int get_height(const CallArguments& arguments) {
  int height = std::max(get_height(arguments.star_args.get()), get_height(arguments.star_kwargs.get()));
  for (const auto& value : arguments.positional) height = std::max(height, value->height);
  for (const auto& [name, value] : arguments.keyword) height = std::max(height, value->height);
  return height;
}

/// A recursive-descent parser of expressions, with the grammar and precedence of Jinja2's parser.
/// All functions throw UserError (bad data) "FILE:LINE: …" for syntax errors.
class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, SyntaxTree& tree) : tokens_(tokens), tree_(tree) {}

  /// Parses an expression. `allow_conditional`: with `a if b else c` at the top level.
  ExpressionPtr parse(bool allow_conditional = true);
  /// Parses an expression, or a tuple of expressions separated by commas. The name `end` ends the
  /// tuple.
  ExpressionPtr parse_tuple(bool allow_conditional = true, std::string_view end = {}, bool is_parenthesized = false);
  /// Parses the left side of an assignment. `allow_attributes`: with attributes of namespaces.
  Target parse_target(bool allow_attributes, std::string_view end = {});
  /// Parses a single name on the left side of an assignment.
  Target parse_name_target();
  /// Parses the filters of a block: `| a | b`, or `a | b` with `starts_with_name`. Returns null
  /// without filters.
  ExpressionPtr parse_filter_chain(bool starts_with_name);

  /// Returns all accesses so far, in the order of the source.
  const std::vector<NameAccess>& name_accesses() const { return name_accesses_; }
  /// Records an assignment to `name` at the current line.
  void record_store(size_t name) { name_accesses_.push_back({name, true, tokens_.line()}); }
  /// Throws for the first unknown filter, test or function that no `if` guards. Guarded ones throw
  /// when they are evaluated, as in Jinja2.
  void check_names() const;
  /// A guard that marks the names that are parsed in its lifetime as guarded by an `if`.
  class IfGuard {
   public:
    explicit IfGuard(ExpressionParser& parser)
        : parser_(parser), first_unknown_(parser.unknown_names_.size()), first_called_(parser.called_names_.size()) {}
    IfGuard(const IfGuard&) = delete;
    IfGuard& operator=(const IfGuard&) = delete;
    ~IfGuard() { parser_.mark_guarded(first_unknown_, first_called_); }

   private:
    ExpressionParser& parser_;
    size_t first_unknown_;
    size_t first_called_;
  };

  /// One level of nesting for the lifetime of the guard. Throws above kMaxTreeHeight.
  class DepthGuard {
   public:
    explicit DepthGuard(ExpressionParser& parser);
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;
    ~DepthGuard() { --parser_.depth_; }

   private:
    ExpressionParser& parser_;
  };

 private:
  /// Creates a node above `children`, which may be null.
  template <class Node>
  ExpressionPtr make_node(int line, Node node, std::initializer_list<const Expression*> children);
  /// Creates a node whose tallest child has the height `child_height`. Throws above kMaxTreeHeight.
  template <class Node>
  ExpressionPtr make_parent_node(int line, Node node, int child_height);
  ExpressionPtr make_list(int line, ListLiteral list);

  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool allow_filters = true);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_number();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr operand);
  ExpressionPtr parse_filters(ExpressionPtr operand);
  ExpressionPtr parse_subscript(ExpressionPtr operand);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_filter(ExpressionPtr operand);
  ExpressionPtr parse_test(ExpressionPtr operand);
  CallArguments parse_arguments();
  Target parse_single_target(bool allow_attributes);
  Target parse_targets(bool allow_attributes, std::string_view end, bool is_parenthesized);
  bool is_tuple_end(std::string_view end) const;
  std::string parse_dotted_name(std::string_view description);
  /// Checks that argument `argument_index`, if it is a string literal, names a filter or test.
  void check_name_argument(const CallArguments& arguments, size_t argument_index, bool is_filter, int line);
  void add_unknown_name(int line, std::string_view kind, std::string_view name);
  void mark_guarded(size_t first_unknown, size_t first_called);

  TokenStream& tokens_;
  SyntaxTree& tree_;
  int depth_ = 0;
  std::vector<NameAccess> name_accesses_;
  /// A name of a filter, test or function that does not exist. See check_names().
  struct UnknownName {
    int line;
    std::string message;
    bool is_guarded;
  };
  /// A call of a name. Later statements may define it, so that check_names() decides.
  struct CalledName {
    size_t name;
    int line;
    bool is_guarded;
  };
  std::vector<UnknownName> unknown_names_;
  std::vector<CalledName> called_names_;
};

template <class Node>
ExpressionPtr ExpressionParser::make_parent_node(int line, Node node, int child_height) {
  if (child_height >= kMaxTreeHeight) {
    tokens_.fail_on_line(line, fmt::format("an expression is nested more than {} operations deep", kMaxTreeHeight));
  }
  return std::make_unique<const Expression>(Expression{line, child_height + 1, std::move(node)});
}

template <class Node>
ExpressionPtr ExpressionParser::make_node(int line, Node node, std::initializer_list<const Expression*> children) {
  int height = 0;
  for (const Expression* expression : children) height = std::max(height, get_height(expression));
  return make_parent_node(line, std::move(node), height);
}

}  // namespace vlmtrain::text::jinja
