#include "text/jinja/syntax/expression_parser.h"

#include <algorithm>
#include <array>

namespace vlmtrain::text::jinja {

ExpressionParser::DepthGuard::DepthGuard(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.nesting_depth_ > kMaxTreeHeight) {
    --parser_.nesting_depth_;
    parser_.tokens_.throw_error(fmt::format("expressions or blocks are nested more than {} deep", kMaxTreeHeight));
  }
}

ExpressionPtr ExpressionParser::make_list_node(int line, ListLiteral list) {
  const auto tallest_child =
      std::max_element(list.items.begin(), list.items.end(),
                       [](const auto& left, const auto& right) { return left->height < right->height; });
  const Expression* tallest_item = tallest_child == list.items.end() ? nullptr : tallest_child->get();
  return make_node(line, std::move(list), {tallest_item});
}

ExpressionPtr ExpressionParser::parse(bool allow_conditional) {
  const DepthGuard depth_guard(*this);
  int line = tokens_.line();
  const size_t first_unknown_name_index = unknown_names_.size();
  const size_t first_called_name_index = called_names_.size();
  ExpressionPtr value = parse_or();
  while (allow_conditional && tokens_.skip_if_name("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr else_value = tokens_.skip_if_name("else") ? parse() : nullptr;
    const std::initializer_list<const Expression*> children = {value.get(), condition.get(), else_value.get()};
    mark_names_inside_if(first_unknown_name_index, first_called_name_index);
    value =
        make_node(line, ConditionalExpression{std::move(condition), std::move(value), std::move(else_value)}, children);
    line = tokens_.line();
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  int line = tokens_.line();
  ExpressionPtr left = parse_and();
  while (tokens_.skip_if_name("or")) {
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
  while (tokens_.skip_if_name("and")) {
    ExpressionPtr right = parse_not();
    const std::initializer_list<const Expression*> children = {left.get(), right.get()};
    left = make_node(line, LogicalExpression{true, std::move(left), std::move(right)}, children);
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!tokens_.is_at_name("not")) return parse_comparison();
  const DepthGuard depth_guard(*this);
  const int line = tokens_.next().line;
  ExpressionPtr operand = parse_not();
  const Expression* child = operand.get();
  return make_node(line, UnaryExpression{UnaryOperator::kNot, std::move(operand)}, {child});
}

ExpressionPtr ExpressionParser::parse_comparison() {
  constexpr std::array<std::pair<const char*, ComparisonOperator>, 6> kOperatorSymbols = {
      {{"==", ComparisonOperator::kEqual},
       {"!=", ComparisonOperator::kUnequal},
       {"<", ComparisonOperator::kLess},
       {"<=", ComparisonOperator::kLessOrEqual},
       {">", ComparisonOperator::kGreater},
       {">=", ComparisonOperator::kGreaterOrEqual}}};
  const int line = tokens_.line();
  ComparisonChain comparison_chain{parse_sum(), {}};
  const Expression* tallest_child = comparison_chain.first_operand.get();
  const auto add_comparison = [&](ComparisonOperator comparison) {
    comparison_chain.comparisons.emplace_back(comparison, parse_sum());
    if (comparison_chain.comparisons.back().second->height > tallest_child->height)
      tallest_child = comparison_chain.comparisons.back().second.get();
  };
  while (true) {
    const auto symbol = std::find_if(kOperatorSymbols.begin(), kOperatorSymbols.end(),
                                     [&](const auto& entry) { return tokens_.is_at_operator(entry.first); });
    if (symbol != kOperatorSymbols.end()) {
      tokens_.next();
      add_comparison(symbol->second);
    } else if (tokens_.skip_if_name("in")) {
      add_comparison(ComparisonOperator::kIn);
    } else if (tokens_.is_at_name("not") && tokens_.peek_next().kind == Token::Kind::kName &&
               tokens_.peek_next().value == "in") {
      tokens_.next();
      tokens_.next();
      add_comparison(ComparisonOperator::kNotIn);
    } else {
      break;
    }
  }
  if (comparison_chain.comparisons.empty()) return std::move(comparison_chain.first_operand);
  return make_node(line, std::move(comparison_chain), {tallest_child});
}

ExpressionPtr ExpressionParser::parse_sum() {
  int line = tokens_.line();
  ExpressionPtr left = parse_concatenation();
  while (tokens_.is_at_operator("+") || tokens_.is_at_operator("-")) {
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
  const Expression* tallest_child = concatenation.elements[0].get();
  while (tokens_.skip_if_operator("~")) {
    concatenation.elements.push_back(parse_product());
    if (concatenation.elements.back()->height > tallest_child->height)
      tallest_child = concatenation.elements.back().get();
  }
  if (concatenation.elements.size() == 1) return std::move(concatenation.elements[0]);
  return make_node(line, std::move(concatenation), {tallest_child});
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
                                     [&](const auto& entry) { return tokens_.is_at_operator(entry.first); });
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
  while (tokens_.skip_if_operator("**")) {
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
  if (tokens_.is_at_operator("-") || tokens_.is_at_operator("+")) {
    const DepthGuard depth_guard(*this);
    const UnaryOperator op = tokens_.next().value == "-" ? UnaryOperator::kNegative : UnaryOperator::kPositive;
    ExpressionPtr unary_operand = parse_unary(false);
    const Expression* child = unary_operand.get();
    operand = make_node(line, UnaryExpression{op, std::move(unary_operand)}, {child});
  } else {
    operand = parse_primary();
  }
  operand = parse_postfix(std::move(operand));
  return allow_filters ? parse_filters_and_tests(std::move(operand)) : std::move(operand);
}

AssignmentTarget ExpressionParser::parse_name_target() {
  AssignmentTarget target;
  const int line = tokens_.line();
  const std::string name = tokens_.expect_name("a name");
  for (const char* constant : {"true", "True", "false", "False", "none", "None"}) {
    if (name == constant) tokens_.throw_error_at_line(line, fmt::format("cannot assign to {}", name));
  }
  target.name = tree_.intern_name(name);
  return target;
}

AssignmentTarget ExpressionParser::parse_single_target(bool allow_attributes) {
  const DepthGuard depth_guard(*this);
  if (tokens_.skip_if_operator("(")) {
    AssignmentTarget parenthesized_target = parse_target_list(false, {}, true);
    tokens_.expect_operator(")");
    return parenthesized_target;
  }
  AssignmentTarget target = parse_name_target();
  if (allow_attributes && tokens_.skip_if_operator(".")) {
    target.attribute = tokens_.expect_name("an attribute name");
    name_accesses_.push_back({target.name, false, tokens_.line()});
  } else {
    record_assignment(target.name);
  }
  return target;
}

AssignmentTarget ExpressionParser::parse_target_list(bool allow_attributes, std::string_view end,
                                                     bool is_parenthesized) {
  AssignmentTarget tuple_target;
  while (true) {
    if (!tuple_target.elements.empty()) tokens_.expect_operator(",");
    if (is_at_tuple_end(end)) break;
    tuple_target.elements.push_back(parse_single_target(allow_attributes));
    if (!tokens_.is_at_operator(",")) break;
    tuple_target.is_tuple = true;
  }
  if (!tuple_target.is_tuple && !tuple_target.elements.empty()) {
    AssignmentTarget single_target = std::move(tuple_target.elements[0]);
    return single_target;
  }
  if (tuple_target.elements.empty() && !is_parenthesized) tokens_.throw_error("a name is missing");
  tuple_target.is_tuple = true;
  return tuple_target;
}

AssignmentTarget ExpressionParser::parse_assignment_target(bool allow_attributes, std::string_view end) {
  return parse_target_list(allow_attributes, end, false);
}

void ExpressionParser::add_unknown_name(int line, std::string_view kind, std::string_view name) {
  unknown_names_.push_back({line, describe_unknown_name(kind, name), false});
}

void ExpressionParser::mark_names_inside_if(size_t first_unknown_name_index, size_t first_called_name_index) {
  for (size_t i = first_unknown_name_index; i < unknown_names_.size(); ++i) unknown_names_[i].is_inside_if = true;
  for (size_t i = first_called_name_index; i < called_names_.size(); ++i) called_names_[i].is_inside_if = true;
}

void ExpressionParser::reject_unknown_names() const {
  std::vector<UnknownName> unknown_names = unknown_names_;
  for (const CalledName& called_name : called_names_) {
    const bool is_known =
        !tree_.global_functions_by_name[called_name.name].is_undefined() || called_name.name <= kKwargsNameIndex ||
        std::any_of(name_accesses_.begin(), name_accesses_.end(),
                    [&](const NameAccess& access) { return access.is_assignment && access.name == called_name.name; });
    if (is_known) continue;
    unknown_names.push_back(
        {called_name.line, describe_unknown_name("function", tree_.names[called_name.name]), called_name.is_inside_if});
  }
  std::stable_sort(unknown_names.begin(), unknown_names.end(),
                   [](const UnknownName& left, const UnknownName& right) { return left.line < right.line; });
  const auto first_name_outside_if = std::find_if(unknown_names.begin(), unknown_names.end(),
                                                  [](const UnknownName& unknown) { return !unknown.is_inside_if; });
  if (first_name_outside_if != unknown_names.end())
    tokens_.throw_error_at_line(first_name_outside_if->line, first_name_outside_if->message);
}

}  // namespace vlmtrain::text::jinja
