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

/// A read of a variable, or an assignment to it.
struct NameAccess {
  size_t name;         ///< index into SyntaxTree::names
  bool is_assignment;  ///< false: a read
  int line;
};

/// Returns the height of the tree, or 0 for null.
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
/// Each parse function starts at the current token of `tokens` and moves past the parsed part.
/// `tokens` and `tree` must outlive the parser. All functions throw UserError (bad data)
/// "FILE:LINE: …" for syntax errors.
class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, SyntaxTree& tree) : tokens_(tokens), tree_(tree) {}

  /// Parses an expression. `allow_conditional`: whether it may be `a if b else c` without
  /// parentheses.
  ExpressionPtr parse(bool allow_conditional = true);
  /// Parses an expression, or a tuple of expressions separated by commas. The name `end`, if not
  /// empty, ends the tuple like a closing token. `is_parenthesized`: whether an empty tuple is
  /// allowed.
  ExpressionPtr parse_tuple(bool allow_conditional = true, std::string_view end = {}, bool is_parenthesized = false);
  /// Parses the left side of an assignment. `allow_attributes`: whether it may be an attribute of a
  /// namespace. `end`: see parse_tuple().
  AssignmentTarget parse_assignment_target(bool allow_attributes, std::string_view end = {});
  /// Parses a single name on the left side of an assignment.
  AssignmentTarget parse_name_target();
  /// Parses the filters of a block: `| a | b`, or `a | b` with `starts_with_name`. Returns null if
  /// there are no filters.
  ExpressionPtr parse_filter_chain(bool starts_with_name);

  /// Returns all accesses so far, in the order of the source.
  const std::vector<NameAccess>& name_accesses() const { return name_accesses_; }
  /// Records an assignment to `name` at the current line.
  void record_assignment(size_t name) { name_accesses_.push_back({name, true, tokens_.line()}); }
  /// Throws for the first unknown filter, test or function outside of the branches of an `if`.
  /// Unknown names inside a branch throw only when they are evaluated, as in Jinja2. Call it after
  /// the whole template is parsed.
  void reject_unknown_names() const;
  /// A guard for the lifetime of an `if`. At its end, marks the names parsed since its construction
  /// as inside an `if`, see reject_unknown_names().
  class IfGuard {
   public:
    explicit IfGuard(ExpressionParser& parser)
        : parser_(parser),
          first_unknown_name_index_(parser.unknown_names_.size()),
          first_called_name_index_(parser.called_names_.size()) {}
    IfGuard(const IfGuard&) = delete;
    IfGuard& operator=(const IfGuard&) = delete;
    ~IfGuard() { parser_.mark_names_inside_if(first_unknown_name_index_, first_called_name_index_); }

   private:
    ExpressionParser& parser_;
    size_t first_unknown_name_index_;
    size_t first_called_name_index_;
  };

  /// A guard that counts one level of nesting for its lifetime. Throws above kMaxTreeHeight.
  class DepthGuard {
   public:
    explicit DepthGuard(ExpressionParser& parser);
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;
    ~DepthGuard() { --parser_.nesting_depth_; }

   private:
    ExpressionParser& parser_;
  };

 private:
  /// Creates a node with these children, each of which may be null.
  template <class Node>
  ExpressionPtr make_node(int line, Node node, std::initializer_list<const Expression*> children);
  /// Creates a node whose tallest child has the height `max_child_height`. Throws above
  /// kMaxTreeHeight.
  template <class Node>
  ExpressionPtr make_parent_node(int line, Node node, int max_child_height);
  ExpressionPtr make_list_node(int line, ListLiteral list);

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
  /// Parses the attributes, subscripts and calls after `operand`.
  ExpressionPtr parse_postfix(ExpressionPtr operand);
  /// Parses the filters, tests and calls after `operand`.
  ExpressionPtr parse_filters_and_tests(ExpressionPtr operand);
  ExpressionPtr parse_subscript(ExpressionPtr operand);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_filter(ExpressionPtr operand);
  ExpressionPtr parse_test(ExpressionPtr operand);
  CallArguments parse_arguments();
  AssignmentTarget parse_single_target(bool allow_attributes);
  AssignmentTarget parse_target_list(bool allow_attributes, std::string_view end, bool is_parenthesized);
  /// Returns whether the current token ends a tuple.
  bool is_at_tuple_end(std::string_view end) const;
  std::string parse_dotted_name(std::string_view description);
  /// Checks that positional argument `argument_index`, if it is a string literal, is the name of a
  /// filter (`is_filter`) or test.
  void check_builtin_name_argument(const CallArguments& arguments, size_t argument_index, bool is_filter, int line);
  /// Records an unknown filter or test for reject_unknown_names(). `kind`: "filter" or "test".
  void add_unknown_name(int line, std::string_view kind, std::string_view name);
  /// Marks the unknown and called names from these indices on as inside an `if`.
  void mark_names_inside_if(size_t first_unknown_name_index, size_t first_called_name_index);

  TokenStream& tokens_;
  SyntaxTree& tree_;
  int nesting_depth_ = 0;  // number of DepthGuards
  std::vector<NameAccess> name_accesses_;
  /// An unknown filter, test or function, see reject_unknown_names().
  struct UnknownName {
    int line;
    std::string message;
    bool is_inside_if;
  };
  /// A call of a name. Later statements may define the name, so reject_unknown_names() decides
  /// whether it is unknown.
  struct CalledName {
    size_t name;
    int line;
    bool is_inside_if;
  };
  std::vector<UnknownName> unknown_names_;
  std::vector<CalledName> called_names_;
};

template <class Node>
ExpressionPtr ExpressionParser::make_parent_node(int line, Node node, int max_child_height) {
  if (max_child_height >= kMaxTreeHeight) {
    tokens_.throw_error_at_line(line,
                                fmt::format("an expression is nested more than {} operations deep", kMaxTreeHeight));
  }
  return std::make_unique<const Expression>(Expression{line, max_child_height + 1, std::move(node)});
}

template <class Node>
ExpressionPtr ExpressionParser::make_node(int line, Node node, std::initializer_list<const Expression*> children) {
  int height = 0;
  for (const Expression* expression : children) height = std::max(height, get_height(expression));
  return make_parent_node(line, std::move(node), height);
}

}  // namespace vlmtrain::text::jinja
