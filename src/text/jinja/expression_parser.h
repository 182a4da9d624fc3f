#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/syntax.h"
#include "text/jinja/token_stream.h"

namespace vlmtrain::text::jinja {

/// Where a template reads a name, or gives something to it.
struct NameEvent {
  size_t name;
  bool is_store;
  int line;
};

/// Reads expressions as Jinja2's parser does, down to what it takes for an argument of a test.
class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, Tree& tree) : tokens_(tokens), tree_(tree) {}

  ExpressionPtr parse(bool with_condition = true);
  /// Expressions with commas between them are a tuple; `end` is a name that ends it.
  ExpressionPtr parse_tuple(bool with_condition = true, std::string_view end = {}, bool in_parentheses = false);
  /// What a value is given to. With `with_attributes`, attributes of namespaces too.
  Target parse_target(bool with_attributes, std::string_view end = {});
  Target parse_name_target();
  /// `| filter…`, or with `at_name` `filter…`, of what is in a block; null where there is none.
  ExpressionPtr parse_block_filter(bool at_name);

  const std::vector<NameEvent>& events() const { return events_; }
  void stored(size_t name) { events_.push_back({name, true, tokens_.line()}); }
  /// Fails for the first name of a filter, test or function that there is not. One that an `if` guards is none: it
  /// fails when it is reached, as in Jinja2.
  void check_names() const;
  /// What is read while it lives is guarded by an `if`.
  class Guard {
   public:
    explicit Guard(ExpressionParser& parser)
        : parser_(parser), first_(parser.missing_.size()), first_call_(parser.called_.size()) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() { parser_.guard_from(first_, first_call_); }

   private:
    ExpressionParser& parser_;
    size_t first_;
    size_t first_call_;
  };

  /// A level more of nesting while it lives. Fails where there are too many.
  class Level {
   public:
    explicit Level(ExpressionParser& parser);
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --parser_.level_; }

   private:
    ExpressionParser& parser_;
  };

 private:
  template <class Node>
  ExpressionPtr make(int line, Node node, std::initializer_list<const Expression*> below);
  /// On top of what has the height `below`.
  template <class Node>
  ExpressionPtr make_on(int line, Node node, int below);
  ExpressionPtr make_list(int line, ListOf list);

  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters = true);
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
  Target parse_target_part(bool with_attributes);
  Target parse_targets(bool with_attributes, std::string_view end, bool in_parentheses);
  bool is_tuple_end(std::string_view end) const;
  std::string parse_dotted_name(std::string_view what);
  /// A text that is given as the argument `index` must name a filter or test.
  void check_named(const CallArguments& arguments, size_t index, bool filter, int line);
  void missing(int line, std::string_view kind, std::string_view name);
  void guard_from(size_t first_missing, size_t first_call);

  TokenStream& tokens_;
  Tree& tree_;
  int level_ = 0;
  std::vector<NameEvent> events_;
  struct Missing {
    int line;
    std::string message;
    bool is_guarded;
  };
  struct CalledName {
    size_t name;
    int line;
    bool is_guarded;
  };
  std::vector<Missing> missing_;
  std::vector<CalledName> called_;
};

}  // namespace vlmtrain::text::jinja
