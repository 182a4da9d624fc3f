#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/syntax/syntax.h"
#include "text/jinja/token_stream.h"

namespace vlmtrain::text::jinja {

/// Where a template reads a name, or gives something to it.
struct NameAccess {
  size_t name;
  bool is_store;
  int line;
};

/// Reads expressions as Jinja2's parser does, down to what it takes for an argument of a test.
class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, SyntaxTree& tree) : tokens_(tokens), tree_(tree) {}

  ExpressionPtr parse(bool allow_conditional = true);
  /// Expressions with commas between them are a tuple; `end` is a name that ends it.
  ExpressionPtr parse_tuple(bool allow_conditional = true, std::string_view end = {}, bool is_parenthesized = false);
  /// What a value is given to. With `allow_attributes`, attributes of namespaces too.
  Target parse_target(bool allow_attributes, std::string_view end = {});
  Target parse_name_target();
  /// `| filter…`, or with `starts_with_name` `filter…`, of what is in a block; null where there is none.
  ExpressionPtr parse_filter_chain(bool starts_with_name);

  const std::vector<NameAccess>& name_accesses() const { return name_accesses_; }
  void record_store(size_t name) { name_accesses_.push_back({name, true, tokens_.line()}); }
  /// Fails for the first name of a filter, test or function that there is not. One that an `if` guards is none: it
  /// fails when it is reached, as in Jinja2.
  void check_names() const;
  /// What is read while it lives is guarded by an `if`.
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

  /// A level more of nesting while it lives. Fails where there are too many.
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
  template <class Node>
  ExpressionPtr make_node(int line, Node node, std::initializer_list<const Expression*> children);
  /// On top of what has the height `children`.
  template <class Node>
  ExpressionPtr make_parent_node(int line, Node node, int children);
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
  /// A text that is given as the argument `argument_index` must name a filter or test.
  void check_name_argument(const CallArguments& arguments, size_t argument_index, bool is_filter, int line);
  void add_unknown_name(int line, std::string_view kind, std::string_view name);
  void mark_guarded(size_t first_unknown, size_t first_called);

  TokenStream& tokens_;
  SyntaxTree& tree_;
  int depth_ = 0;
  std::vector<NameAccess> name_accesses_;
  struct UnknownName {
    int line;
    std::string message;
    bool is_guarded;
  };
  struct CalledName {
    size_t name;
    int line;
    bool is_guarded;
  };
  std::vector<UnknownName> unknown_names_;
  std::vector<CalledName> called_names_;
};

}  // namespace vlmtrain::text::jinja
