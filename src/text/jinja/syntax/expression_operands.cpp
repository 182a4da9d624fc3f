#include <algorithm>
#include <utility>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/syntax/expression_parser.h"

namespace vlmtrain::text::jinja {
namespace {

/// Returns the value of a literal, or null for other expressions.
const Value* find_literal_value(const Expression* expression) {
  const auto* literal = expression == nullptr ? nullptr : std::get_if<Literal>(&expression->node);
  return literal == nullptr ? nullptr : &literal->value;
}

}  // namespace

ExpressionPtr ExpressionParser::parse_primary() {
  const DepthGuard depth_guard(*this);
  const int line = tokens_.line();
  switch (tokens_.current().kind) {
    case Token::Kind::kName: {
      const std::string name = tokens_.next().value;
      if (name == "true" || name == "True") return make_node(line, Literal{Value(true)}, {});
      if (name == "false" || name == "False") return make_node(line, Literal{Value(false)}, {});
      if (name == "none" || name == "None") return make_node(line, Literal{Value::none()}, {});
      // Names that Jinja2 defines.
      if (name == "lipsum" || name == "self")
        tokens_.throw_error_at_line(line, fmt::format("\"{}\" is not supported", name));
      const size_t name_index = tree_.intern_name(name);
      name_accesses_.push_back({name_index, false, line});
      return make_node(line, NameReference{name_index}, {});
    }
    case Token::Kind::kString: {
      std::string text = tokens_.next().value;
      while (tokens_.is_at_kind(Token::Kind::kString)) text += tokens_.next().value;
      return make_node(line, Literal{Value::text(std::move(text))}, {});
    }
    case Token::Kind::kInteger:
    case Token::Kind::kFloat:
      return parse_number();
    case Token::Kind::kOperator:
      if (tokens_.skip_if_operator("(")) {
        ExpressionPtr parenthesized_expression = parse_tuple(true, {}, true);
        tokens_.expect_operator(")");
        return parenthesized_expression;
      }
      if (tokens_.is_at_operator("[")) return parse_list();
      if (tokens_.is_at_operator("{")) return parse_dict();
      [[fallthrough]];
    default:
      tokens_.throw_error(
          fmt::format("expected an expression before {}", TokenStream::describe_token(tokens_.current())));
  }
}

ExpressionPtr ExpressionParser::parse_number() {
  const Token token = tokens_.next();
  try {
    if (token.kind == Token::Kind::kInteger) {
      return make_node(token.line, Literal{Value(parse_int(token.value, 0).value_or(0))}, {});
    }
    return make_node(token.line, Literal{Value(parse_float(token.value).value_or(0))}, {});
  } catch (const EvaluationError& error) {
    tokens_.throw_error_at_line(token.line, error.message);
  }
}

bool ExpressionParser::is_at_tuple_end(std::string_view end) const {
  return tokens_.is_at_kind(Token::Kind::kVariableEnd) || tokens_.is_at_kind(Token::Kind::kBlockEnd) ||
         tokens_.is_at_operator(")") || (!end.empty() && tokens_.is_at_name(end));
}

ExpressionPtr ExpressionParser::parse_tuple(bool allow_conditional, std::string_view end, bool is_parenthesized) {
  int line = tokens_.line();
  ListLiteral tuple{{}, true};
  bool is_tuple = false;
  while (true) {
    if (!tuple.items.empty()) tokens_.expect_operator(",");
    if (is_at_tuple_end(end)) break;
    tuple.items.push_back(parse(allow_conditional));
    if (!tokens_.is_at_operator(",")) break;
    is_tuple = true;
    line = tokens_.line();
  }
  if (!is_tuple && !tuple.items.empty()) return std::move(tuple.items[0]);
  if (!is_tuple && !is_parenthesized) {
    tokens_.throw_error(
        fmt::format("expected an expression before {}", TokenStream::describe_token(tokens_.current())));
  }
  return make_list_node(line, std::move(tuple));
}

ExpressionPtr ExpressionParser::parse_list() {
  const int line = tokens_.next().line;
  ListLiteral list{{}, false};
  while (!tokens_.is_at_operator("]")) {
    if (!list.items.empty()) tokens_.expect_operator(",");
    if (tokens_.is_at_operator("]")) break;
    list.items.push_back(parse());
  }
  tokens_.expect_operator("]");
  return make_list_node(line, std::move(list));
}

ExpressionPtr ExpressionParser::parse_dict() {
  const int line = tokens_.next().line;
  DictLiteral dict;
  const Expression* tallest_child = nullptr;
  while (!tokens_.is_at_operator("}")) {
    if (!dict.entries.empty()) tokens_.expect_operator(",");
    if (tokens_.is_at_operator("}")) break;
    ExpressionPtr key = parse();
    tokens_.expect_operator(":");
    ExpressionPtr value = parse();
    for (const Expression* child : {key.get(), value.get()}) {
      if (child->height > get_height(tallest_child)) tallest_child = child;
    }
    dict.entries.emplace_back(std::move(key), std::move(value));
  }
  tokens_.expect_operator("}");
  return make_node(line, std::move(dict), {tallest_child});
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr operand) {
  while (true) {
    if (tokens_.is_at_operator(".") || tokens_.is_at_operator("[")) {
      operand = parse_subscript(std::move(operand));
    } else if (tokens_.is_at_operator("(")) {
      operand = parse_call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr operand) {
  while (true) {
    if (tokens_.is_at_operator("|")) {
      tokens_.next();
      operand = parse_filter(std::move(operand));
    } else if (tokens_.is_at_name("is")) {
      operand = parse_test(std::move(operand));
    } else if (tokens_.is_at_operator("(")) {
      operand = parse_call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr operand) {
  const Token token = tokens_.next();
  const Expression* object = operand.get();
  if (token.value == ".") {
    // `a.0` is `a[0]`.
    if (tokens_.is_at_kind(Token::Kind::kInteger)) {
      ExpressionPtr key = parse_number();
      const Expression* key_expression = key.get();
      return make_node(token.line, ItemAccess{std::move(operand), std::move(key)}, {object, key_expression});
    }
    std::string name = tokens_.expect_name("an attribute name");
    return make_node(token.line, AttributeAccess{std::move(operand), std::move(name)}, {object});
  }
  SliceAccess slice;
  bool is_slice = false;
  const auto is_at_slice_part_end = [&] { return tokens_.is_at_operator(":") || tokens_.is_at_operator("]"); };
  if (!tokens_.is_at_operator(":")) slice.begin = parse();
  if (tokens_.is_at_operator(",")) tokens_.throw_error("several items between [ and ] are not supported");
  if (tokens_.skip_if_operator(":")) {
    is_slice = true;
    if (!is_at_slice_part_end()) slice.end = parse();
    if (tokens_.skip_if_operator(":") && !is_at_slice_part_end()) slice.step = parse();
  }
  tokens_.expect_operator("]");
  const std::initializer_list<const Expression*> children = {object, slice.begin.get(), slice.end.get(),
                                                             slice.step.get()};
  if (!is_slice) return make_node(token.line, ItemAccess{std::move(operand), std::move(slice.begin)}, children);
  slice.object = std::move(operand);
  return make_node(token.line, std::move(slice), children);
}

CallArguments ExpressionParser::parse_arguments() {
  const int line = tokens_.line();
  tokens_.expect_operator("(");
  CallArguments arguments;
  const auto check_argument_order = [&](bool is_in_order) {
    if (!is_in_order)
      tokens_.throw_error_at_line(line,
                                  "the arguments of a call must be in the order: positional, keyword, *args, **kwargs");
  };
  for (bool is_first = true; !tokens_.is_at_operator(")"); is_first = false) {
    if (!is_first) {
      tokens_.expect_operator(",");
      if (tokens_.is_at_operator(")")) break;
    }
    const bool is_keyword_argument = tokens_.is_at_kind(Token::Kind::kName) &&
                                     tokens_.peek_next().kind == Token::Kind::kOperator &&
                                     tokens_.peek_next().value == "=";
    if (tokens_.skip_if_operator("*")) {
      check_argument_order(!arguments.star_args && !arguments.star_kwargs);
      arguments.star_args = parse();
    } else if (tokens_.skip_if_operator("**")) {
      check_argument_order(!arguments.star_kwargs);
      arguments.star_kwargs = parse();
    } else if (is_keyword_argument) {
      check_argument_order(!arguments.star_kwargs);
      std::string name = tokens_.next().value;
      tokens_.next();
      arguments.keyword.emplace_back(std::move(name), parse());
    } else {
      check_argument_order(!arguments.star_args && !arguments.star_kwargs && arguments.keyword.empty());
      arguments.positional.push_back(parse());
    }
  }
  tokens_.expect_operator(")");
  return arguments;
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  const int line = tokens_.line();
  if (const auto* name = std::get_if<NameReference>(&callee->node)) called_names_.push_back({name->name, line, false});
  if (const auto* attribute = std::get_if<AttributeAccess>(&callee->node)) {
    if (is_unsupported_method(attribute->name)) {
      tokens_.throw_error_at_line(line, fmt::format("the method {}() is not supported", attribute->name));
    }
  }
  CallArguments arguments = parse_arguments();
  const int max_child_height = std::max(callee->height, get_height(arguments));
  return make_parent_node(line, Call{std::move(callee), std::move(arguments)}, max_child_height);
}

std::string ExpressionParser::parse_dotted_name(std::string_view description) {
  std::string name = tokens_.expect_name(description);
  while (tokens_.skip_if_operator(".")) name.append(".").append(tokens_.expect_name(description));
  return name;
}

void ExpressionParser::check_builtin_name_argument(const CallArguments& arguments, size_t argument_index,
                                                   bool is_filter, int line) {
  if (argument_index >= arguments.positional.size()) return;
  const Value* name_literal = find_literal_value(arguments.positional[argument_index].get());
  if (name_literal == nullptr || name_literal->text() == nullptr) return;
  const std::string_view name = name_literal->text()->view();
  const Builtin* builtin = is_filter ? find_filter(name) : find_test(name);
  if (builtin == nullptr) add_unknown_name(line, is_filter ? "filter" : "test", name);
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr operand) {
  const int line = tokens_.line();
  const std::string name = parse_dotted_name("a filter name");
  const Builtin* filter = find_filter(name);
  if (filter == nullptr) add_unknown_name(line, "filter", name);
  FilterCall filter_call{filter, name, std::move(operand), {}};
  if (tokens_.is_at_operator("(")) filter_call.arguments = parse_arguments();
  if (name == "map") check_builtin_name_argument(filter_call.arguments, 0, true, line);
  if (name == "select" || name == "reject") check_builtin_name_argument(filter_call.arguments, 0, false, line);
  if (name == "selectattr" || name == "rejectattr") check_builtin_name_argument(filter_call.arguments, 1, false, line);
  const int max_child_height = std::max(get_height(filter_call.operand.get()), get_height(filter_call.arguments));
  return make_parent_node(line, std::move(filter_call), max_child_height);
}

ExpressionPtr ExpressionParser::parse_filter_chain(bool starts_with_name) {
  ExpressionPtr filter_chain;
  while (starts_with_name || tokens_.is_at_operator("|")) {
    if (!std::exchange(starts_with_name, false)) tokens_.next();
    filter_chain = parse_filter(std::move(filter_chain));
  }
  return filter_chain;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr operand) {
  const DepthGuard depth_guard(*this);
  const int line = tokens_.next().line;
  const bool is_negated = tokens_.skip_if_name("not");
  const std::string name = parse_dotted_name("a test name");
  const Builtin* test = find_test(name);
  if (test == nullptr) add_unknown_name(line, "test", name);
  CallArguments arguments;
  const Token::Kind kind = tokens_.current().kind;
  const bool is_argument_start = kind == Token::Kind::kName || kind == Token::Kind::kString ||
                                 kind == Token::Kind::kInteger || kind == Token::Kind::kFloat ||
                                 tokens_.is_at_operator("[") || tokens_.is_at_operator("{");
  if (tokens_.is_at_operator("(")) {
    arguments = parse_arguments();
  } else if (is_argument_start && !tokens_.is_at_name("else") && !tokens_.is_at_name("or") &&
             !tokens_.is_at_name("and")) {
    if (tokens_.is_at_name("is")) tokens_.throw_error("tests cannot be chained with \"is\"");
    // A single argument needs no parentheses: `x is divisibleby 3`.
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  const int max_child_height = std::max(operand->height, get_height(arguments));
  ExpressionPtr result =
      make_parent_node(line, TestCall{test, name, std::move(operand), std::move(arguments)}, max_child_height);
  if (!is_negated) return result;
  const Expression* test_expression = result.get();
  return make_node(line, UnaryExpression{UnaryOperator::kNot, std::move(result)}, {test_expression});
}

}  // namespace vlmtrain::text::jinja
