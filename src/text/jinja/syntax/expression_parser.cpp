#include "text/jinja/syntax/expression_parser.h"

#include <algorithm>
#include <array>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/budget.h"
#include "text/jinja/methods.h"
#include "text/jinja/runtime/numbers.h"

namespace vlmtrain::text::jinja {
namespace {

int get_height(const Expression* expression) {
  return expression == nullptr ? 0 : expression->height;
}

int get_height(const CallArguments& arguments) {
  int height = std::max(get_height(arguments.star_args.get()), get_height(arguments.star_kwargs.get()));
  for (const auto& value : arguments.positional) height = std::max(height, value->height);
  for (const auto& [name, value] : arguments.keyword) height = std::max(height, value->height);
  return height;
}

const Value* find_literal(const Expression* expression) {
  const auto* literal = expression == nullptr ? nullptr : std::get_if<Literal>(&expression->node);
  return literal == nullptr ? nullptr : &literal->value;
}

}  // namespace

ExpressionParser::DepthGuard::DepthGuard(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > kMaxTreeHeight) {
    --parser_.depth_;
    parser_.tokens_.fail(fmt::format("expressions or blocks lie more than {} deep in each other", kMaxTreeHeight));
  }
}

template <class Node>
ExpressionPtr ExpressionParser::make_parent_node(int line, Node node, int child_height) {
  if (child_height >= kMaxTreeHeight) {
    tokens_.fail_on_line(line, fmt::format("an expression is more than {} operations deep", kMaxTreeHeight));
  }
  return std::make_unique<const Expression>(Expression{line, child_height + 1, std::move(node)});
}

template <class Node>
ExpressionPtr ExpressionParser::make_node(int line, Node node, std::initializer_list<const Expression*> children) {
  int height = 0;
  for (const Expression* expression : children) height = std::max(height, get_height(expression));
  return make_parent_node(line, std::move(node), height);
}

ExpressionPtr ExpressionParser::make_list(int line, ListLiteral list) {
  const auto tallest = std::max_element(list.items.begin(), list.items.end(), [](const auto& left, const auto& right) {
    return left->height < right->height;
  });
  const Expression* tallest_item = tallest == list.items.end() ? nullptr : tallest->get();
  return make_node(line, std::move(list), {tallest_item});
}

ExpressionPtr ExpressionParser::parse(bool allow_conditional) {
  const DepthGuard depth_guard(*this);
  int line = tokens_.line();
  const size_t first_unknown = unknown_names_.size();
  const size_t first_called = called_names_.size();
  ExpressionPtr value = parse_or();
  while (allow_conditional && tokens_.skip_name("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr else_value = tokens_.skip_name("else") ? parse() : nullptr;
    const std::initializer_list<const Expression*> children = {value.get(), condition.get(), else_value.get()};
    mark_guarded(first_unknown, first_called);
    value =
        make_node(line, ConditionalExpression{std::move(condition), std::move(value), std::move(else_value)}, children);
    line = tokens_.line();
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  int line = tokens_.line();
  ExpressionPtr left = parse_and();
  while (tokens_.skip_name("or")) {
    ExpressionPtr right = parse_and();
    const std::initializer_list<const Expression*> children = {left.get(), right.get()};
    left = make_node(line, LogicalExpression{false, std::move(left), std::move(right)}, children);
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  int line = tokens_.line();
  ExpressionPtr left = parse_not();
  while (tokens_.skip_name("and")) {
    ExpressionPtr right = parse_not();
    const std::initializer_list<const Expression*> children = {left.get(), right.get()};
    left = make_node(line, LogicalExpression{true, std::move(left), std::move(right)}, children);
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!tokens_.is_name("not")) return parse_comparison();
  const DepthGuard depth_guard(*this);
  const int line = tokens_.next().line;
  ExpressionPtr operand = parse_not();
  const Expression* child = operand.get();
  return make_node(line, UnaryExpression{UnaryOperator::kNot, std::move(operand)}, {child});
}

ExpressionPtr ExpressionParser::parse_comparison() {
  constexpr std::array<std::pair<const char*, Comparison>, 6> kOperatorSymbols = {
      {{"==", Comparison::kEqual},
       {"!=", Comparison::kUnequal},
       {"<", Comparison::kLess},
       {"<=", Comparison::kLessOrEqual},
       {">", Comparison::kGreater},
       {">=", Comparison::kGreaterOrEqual}}};
  const int line = tokens_.line();
  ComparisonChain chain{parse_sum(), {}};
  const Expression* tallest = chain.first.get();
  const auto add = [&](Comparison comparison) {
    chain.comparisons.emplace_back(comparison, parse_sum());
    if (chain.comparisons.back().second->height > tallest->height) tallest = chain.comparisons.back().second.get();
  };
  while (true) {
    const auto symbol = std::find_if(kOperatorSymbols.begin(), kOperatorSymbols.end(),
                                     [&](const auto& entry) { return tokens_.is_operator(entry.first); });
    if (symbol != kOperatorSymbols.end()) {
      tokens_.next();
      add(symbol->second);
    } else if (tokens_.skip_name("in")) {
      add(Comparison::kIn);
    } else if (tokens_.is_name("not") && tokens_.peek_next().kind == Token::Kind::kName &&
               tokens_.peek_next().value == "in") {
      tokens_.next();
      tokens_.next();
      add(Comparison::kNotIn);
    } else {
      break;
    }
  }
  if (chain.comparisons.empty()) return std::move(chain.first);
  return make_node(line, std::move(chain), {tallest});
}

ExpressionPtr ExpressionParser::parse_sum() {
  int line = tokens_.line();
  ExpressionPtr left = parse_concatenation();
  while (tokens_.is_operator("+") || tokens_.is_operator("-")) {
    const BinaryOperator op = tokens_.next().value == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
    ExpressionPtr right = parse_concatenation();
    const std::initializer_list<const Expression*> children = {left.get(), right.get()};
    left = make_node(line, BinaryExpression{op, std::move(left), std::move(right)}, children);
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int line = tokens_.line();
  Concatenation concatenation;
  concatenation.elements.push_back(parse_product());
  const Expression* tallest = concatenation.elements[0].get();
  while (tokens_.skip_operator("~")) {
    concatenation.elements.push_back(parse_product());
    if (concatenation.elements.back()->height > tallest->height) tallest = concatenation.elements.back().get();
  }
  if (concatenation.elements.size() == 1) return std::move(concatenation.elements[0]);
  return make_node(line, std::move(concatenation), {tallest});
}

ExpressionPtr ExpressionParser::parse_product() {
  constexpr std::array<std::pair<const char*, BinaryOperator>, 4> kOperatorSymbols = {
      {{"*", BinaryOperator::kMultiply},
       {"/", BinaryOperator::kDivide},
       {"//", BinaryOperator::kFloorDivide},
       {"%", BinaryOperator::kModulo}}};
  int line = tokens_.line();
  ExpressionPtr left = parse_power();
  while (true) {
    const auto symbol = std::find_if(kOperatorSymbols.begin(), kOperatorSymbols.end(),
                                     [&](const auto& entry) { return tokens_.is_operator(entry.first); });
    if (symbol == kOperatorSymbols.end()) return left;
    tokens_.next();
    ExpressionPtr right = parse_power();
    const std::initializer_list<const Expression*> children = {left.get(), right.get()};
    left = make_node(line, BinaryExpression{symbol->second, std::move(left), std::move(right)}, children);
    line = tokens_.line();
  }
}

ExpressionPtr ExpressionParser::parse_power() {
  int line = tokens_.line();
  ExpressionPtr left = parse_unary();
  while (tokens_.skip_operator("**")) {
    ExpressionPtr right = parse_unary();
    const std::initializer_list<const Expression*> children = {left.get(), right.get()};
    left = make_node(line, BinaryExpression{BinaryOperator::kPower, std::move(left), std::move(right)}, children);
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool allow_filters) {
  const int line = tokens_.line();
  ExpressionPtr operand;
  if (tokens_.is_operator("-") || tokens_.is_operator("+")) {
    const DepthGuard depth_guard(*this);
    const UnaryOperator op = tokens_.next().value == "-" ? UnaryOperator::kNegative : UnaryOperator::kPositive;
    ExpressionPtr inner = parse_unary(false);
    const Expression* child = inner.get();
    operand = make_node(line, UnaryExpression{op, std::move(inner)}, {child});
  } else {
    operand = parse_primary();
  }
  operand = parse_postfix(std::move(operand));
  return allow_filters ? parse_filters(std::move(operand)) : std::move(operand);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const DepthGuard depth_guard(*this);
  const int line = tokens_.line();
  switch (tokens_.current().kind) {
    case Token::Kind::kName: {
      const std::string name = tokens_.next().value;
      if (name == "true" || name == "True") return make_node(line, Literal{Value(true)}, {});
      if (name == "false" || name == "False") return make_node(line, Literal{Value(false)}, {});
      if (name == "none" || name == "None") return make_node(line, Literal{Value::none()}, {});
      if (name == "lipsum" || name == "self") tokens_.fail_on_line(line, fmt::format("\"{}\" is not supported", name));
      const size_t name_index = tree_.intern_name(name);
      name_accesses_.push_back({name_index, false, line});
      return make_node(line, NameReference{name_index}, {});
    }
    case Token::Kind::kString: {
      std::string text = tokens_.next().value;
      while (tokens_.is(Token::Kind::kString)) text += tokens_.next().value;
      return make_node(line, Literal{Value::text(std::move(text))}, {});
    }
    case Token::Kind::kInteger:
    case Token::Kind::kFloat:
      return parse_number();
    case Token::Kind::kOperator:
      if (tokens_.skip_operator("(")) {
        ExpressionPtr inner = parse_tuple(true, {}, true);
        tokens_.expect_operator(")");
        return inner;
      }
      if (tokens_.is_operator("[")) return parse_list();
      if (tokens_.is_operator("{")) return parse_dict();
      [[fallthrough]];
    default:
      tokens_.fail(fmt::format("a value is missing before {}", TokenStream::describe(tokens_.current())));
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
    tokens_.fail_on_line(token.line, error.message);
  }
}

bool ExpressionParser::is_tuple_end(std::string_view end) const {
  return tokens_.is(Token::Kind::kVariableEnd) || tokens_.is(Token::Kind::kBlockEnd) || tokens_.is_operator(")") ||
         (!end.empty() && tokens_.is_name(end));
}

ExpressionPtr ExpressionParser::parse_tuple(bool allow_conditional, std::string_view end, bool is_parenthesized) {
  int line = tokens_.line();
  ListLiteral tuple{{}, true};
  bool is_tuple = false;
  while (true) {
    if (!tuple.items.empty()) tokens_.expect_operator(",");
    if (is_tuple_end(end)) break;
    tuple.items.push_back(parse(allow_conditional));
    if (!tokens_.is_operator(",")) break;
    is_tuple = true;
    line = tokens_.line();
  }
  if (!is_tuple && !tuple.items.empty()) return std::move(tuple.items[0]);
  if (!is_tuple && !is_parenthesized) {
    tokens_.fail(fmt::format("a value is missing before {}", TokenStream::describe(tokens_.current())));
  }
  return make_list(line, std::move(tuple));
}

ExpressionPtr ExpressionParser::parse_list() {
  const int line = tokens_.next().line;
  ListLiteral list{{}, false};
  while (!tokens_.is_operator("]")) {
    if (!list.items.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("]")) break;
    list.items.push_back(parse());
  }
  tokens_.expect_operator("]");
  return make_list(line, std::move(list));
}

ExpressionPtr ExpressionParser::parse_dict() {
  const int line = tokens_.next().line;
  DictLiteral dict;
  const Expression* tallest = nullptr;
  while (!tokens_.is_operator("}")) {
    if (!dict.entries.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("}")) break;
    ExpressionPtr key = parse();
    tokens_.expect_operator(":");
    ExpressionPtr value = parse();
    for (const Expression* child : {key.get(), value.get()}) {
      if (child->height > get_height(tallest)) tallest = child;
    }
    dict.entries.emplace_back(std::move(key), std::move(value));
  }
  tokens_.expect_operator("}");
  return make_node(line, std::move(dict), {tallest});
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr operand) {
  while (true) {
    if (tokens_.is_operator(".") || tokens_.is_operator("[")) {
      operand = parse_subscript(std::move(operand));
    } else if (tokens_.is_operator("(")) {
      operand = parse_call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr operand) {
  while (true) {
    if (tokens_.is_operator("|")) {
      tokens_.next();
      operand = parse_filter(std::move(operand));
    } else if (tokens_.is_name("is")) {
      operand = parse_test(std::move(operand));
    } else if (tokens_.is_operator("(")) {
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
    if (tokens_.is(Token::Kind::kInteger)) {
      ExpressionPtr key = parse_number();
      const Expression* key_expression = key.get();
      return make_node(token.line, ItemAccess{std::move(operand), std::move(key)}, {object, key_expression});
    }
    std::string name = tokens_.expect_name("an attribute's name");
    return make_node(token.line, AttributeAccess{std::move(operand), std::move(name)}, {object});
  }
  SliceAccess slice;
  bool is_slice = false;
  const auto is_at_part_end = [&] { return tokens_.is_operator(":") || tokens_.is_operator("]"); };
  if (!tokens_.is_operator(":")) slice.begin = parse();
  if (tokens_.is_operator(",")) tokens_.fail("several items between [ and ] are not supported");
  if (tokens_.skip_operator(":")) {
    is_slice = true;
    if (!is_at_part_end()) slice.end = parse();
    if (tokens_.skip_operator(":") && !is_at_part_end()) slice.step = parse();
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
  const auto require_order = [&](bool is_in_order) {
    if (!is_in_order) tokens_.fail_on_line(line, "the arguments of a call are out of order");
  };
  for (bool first = true; !tokens_.is_operator(")"); first = false) {
    if (!first) {
      tokens_.expect_operator(",");
      if (tokens_.is_operator(")")) break;
    }
    const bool is_keyword = tokens_.is(Token::Kind::kName) && tokens_.peek_next().kind == Token::Kind::kOperator &&
                            tokens_.peek_next().value == "=";
    if (tokens_.skip_operator("*")) {
      require_order(!arguments.star_args && !arguments.star_kwargs);
      arguments.star_args = parse();
    } else if (tokens_.skip_operator("**")) {
      require_order(!arguments.star_kwargs);
      arguments.star_kwargs = parse();
    } else if (is_keyword) {
      require_order(!arguments.star_kwargs);
      std::string name = tokens_.next().value;
      tokens_.next();
      arguments.keyword.emplace_back(std::move(name), parse());
    } else {
      require_order(!arguments.star_args && !arguments.star_kwargs && arguments.keyword.empty());
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
      tokens_.fail_on_line(line, fmt::format("the method {}() is not supported", attribute->name));
    }
  }
  CallArguments arguments = parse_arguments();
  const int child_height = std::max(callee->height, get_height(arguments));
  return make_parent_node(line, Call{std::move(callee), std::move(arguments)}, child_height);
}

std::string ExpressionParser::parse_dotted_name(std::string_view description) {
  std::string name = tokens_.expect_name(description);
  while (tokens_.skip_operator(".")) name.append(".").append(tokens_.expect_name(description));
  return name;
}

void ExpressionParser::check_name_argument(const CallArguments& arguments, size_t argument_index, bool is_filter,
                                           int line) {
  if (argument_index >= arguments.positional.size()) return;
  const Value* name_literal = find_literal(arguments.positional[argument_index].get());
  if (name_literal == nullptr || name_literal->text() == nullptr) return;
  const std::string_view name = name_literal->text()->view();
  const Builtin* builtin = is_filter ? find_filter(name) : find_test(name);
  if (builtin == nullptr) add_unknown_name(line, is_filter ? "filter" : "test", name);
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr operand) {
  const int line = tokens_.line();
  const std::string name = parse_dotted_name("a filter's name");
  const Builtin* filter = find_filter(name);
  if (filter == nullptr) add_unknown_name(line, "filter", name);
  FilterCall filter_call{filter, name, std::move(operand), {}};
  if (tokens_.is_operator("(")) filter_call.arguments = parse_arguments();
  if (name == "map") check_name_argument(filter_call.arguments, 0, true, line);
  if (name == "select" || name == "reject") check_name_argument(filter_call.arguments, 0, false, line);
  if (name == "selectattr" || name == "rejectattr") check_name_argument(filter_call.arguments, 1, false, line);
  const int child_height = std::max(get_height(filter_call.operand.get()), get_height(filter_call.arguments));
  return make_parent_node(line, std::move(filter_call), child_height);
}

ExpressionPtr ExpressionParser::parse_filter_chain(bool starts_with_name) {
  ExpressionPtr filter_chain;
  while (starts_with_name || tokens_.is_operator("|")) {
    if (!std::exchange(starts_with_name, false)) tokens_.next();
    filter_chain = parse_filter(std::move(filter_chain));
  }
  return filter_chain;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr operand) {
  const DepthGuard depth_guard(*this);
  const int line = tokens_.next().line;
  const bool negated = tokens_.skip_name("not");
  const std::string name = parse_dotted_name("a test's name");
  const Builtin* test = find_test(name);
  if (test == nullptr) add_unknown_name(line, "test", name);
  CallArguments arguments;
  const Token::Kind kind = tokens_.current().kind;
  const bool starts_value = kind == Token::Kind::kName || kind == Token::Kind::kString ||
                            kind == Token::Kind::kInteger || kind == Token::Kind::kFloat || tokens_.is_operator("[") ||
                            tokens_.is_operator("{");
  if (tokens_.is_operator("(")) {
    arguments = parse_arguments();
  } else if (starts_value && !tokens_.is_name("else") && !tokens_.is_name("or") && !tokens_.is_name("and")) {
    if (tokens_.is_name("is")) tokens_.fail("tests cannot be chained with \"is\"");
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  const int child_height = std::max(operand->height, get_height(arguments));
  ExpressionPtr result =
      make_parent_node(line, TestCall{test, name, std::move(operand), std::move(arguments)}, child_height);
  if (!negated) return result;
  const Expression* inner = result.get();
  return make_node(line, UnaryExpression{UnaryOperator::kNot, std::move(result)}, {inner});
}

Target ExpressionParser::parse_name_target() {
  Target target;
  const int line = tokens_.line();
  const std::string name = tokens_.expect_name("a name");
  for (const char* constant : {"true", "True", "false", "False", "none", "None"}) {
    if (name == constant) tokens_.fail_on_line(line, fmt::format("nothing can be given to {}", name));
  }
  target.name = tree_.intern_name(name);
  return target;
}

Target ExpressionParser::parse_single_target(bool allow_attributes) {
  const DepthGuard depth_guard(*this);
  if (tokens_.skip_operator("(")) {
    Target inner = parse_targets(false, {}, true);
    tokens_.expect_operator(")");
    return inner;
  }
  Target target = parse_name_target();
  if (allow_attributes && tokens_.skip_operator(".")) {
    target.attribute = tokens_.expect_name("an attribute's name");
    name_accesses_.push_back({target.name, false, tokens_.line()});
  } else {
    record_store(target.name);
  }
  return target;
}

Target ExpressionParser::parse_targets(bool allow_attributes, std::string_view end, bool is_parenthesized) {
  Target tuple_target;
  while (true) {
    if (!tuple_target.elements.empty()) tokens_.expect_operator(",");
    if (is_tuple_end(end)) break;
    tuple_target.elements.push_back(parse_single_target(allow_attributes));
    if (!tokens_.is_operator(",")) break;
    tuple_target.is_tuple = true;
  }
  if (!tuple_target.is_tuple && !tuple_target.elements.empty()) {
    Target single_target = std::move(tuple_target.elements[0]);
    return single_target;
  }
  if (tuple_target.elements.empty() && !is_parenthesized) tokens_.fail("a name is missing");
  tuple_target.is_tuple = true;
  return tuple_target;
}

Target ExpressionParser::parse_target(bool allow_attributes, std::string_view end) {
  return parse_targets(allow_attributes, end, false);
}

void ExpressionParser::add_unknown_name(int line, std::string_view kind, std::string_view name) {
  unknown_names_.push_back(
      {line, fmt::format("there is no {} \"{}\"; docs/chat-templates.md lists those that there are", kind, name),
       false});
}

void ExpressionParser::mark_guarded(size_t first_unknown, size_t first_called) {
  for (size_t i = first_unknown; i < unknown_names_.size(); ++i) unknown_names_[i].is_guarded = true;
  for (size_t i = first_called; i < called_names_.size(); ++i) called_names_[i].is_guarded = true;
}

void ExpressionParser::check_names() const {
  std::vector<UnknownName> unknown_names = unknown_names_;
  for (const CalledName& called : called_names_) {
    const bool is_known = !tree_.functions[called.name].is_undefined() || called.name <= kKwargsName ||
                          std::any_of(name_accesses_.begin(), name_accesses_.end(), [&](const NameAccess& access) {
                            return access.is_store && access.name == called.name;
                          });
    if (is_known) continue;
    unknown_names.push_back(
        {called.line,
         fmt::format("there is no function \"{}\"; docs/chat-templates.md lists those that there are",
                     tree_.names[called.name]),
         called.is_guarded});
  }
  std::stable_sort(unknown_names.begin(), unknown_names.end(),
                   [](const UnknownName& left, const UnknownName& right) { return left.line < right.line; });
  const auto first_unguarded = std::find_if(unknown_names.begin(), unknown_names.end(),
                                            [](const UnknownName& unknown) { return !unknown.is_guarded; });
  if (first_unguarded != unknown_names.end()) tokens_.fail_on_line(first_unguarded->line, first_unguarded->message);
}

}  // namespace vlmtrain::text::jinja
