#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <array>

#include "text/jinja/callables.h"
#include "text/jinja/limits.h"
#include "text/jinja/methods.h"
#include "text/jinja/numbers.h"

namespace vlmtrain::text::jinja {
namespace {

int height_of(const Expression* expression) {
  return expression == nullptr ? 0 : expression->height;
}

int height_of(const CallArguments& arguments) {
  int height = std::max(height_of(arguments.all_positional.get()), height_of(arguments.all_keyword.get()));
  for (const auto& value : arguments.positional) height = std::max(height, value->height);
  for (const auto& [name, value] : arguments.keyword) height = std::max(height, value->height);
  return height;
}

const Value* literal_of(const Expression* expression) {
  const auto* literal = expression == nullptr ? nullptr : std::get_if<Literal>(&expression->node);
  return literal == nullptr ? nullptr : &literal->value;
}

}  // namespace

ExpressionParser::Level::Level(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.level_ > kMaxTreeHeight) {
    --parser_.level_;
    parser_.tokens_.fail(fmt::format("expressions or blocks lie more than {} deep in each other", kMaxTreeHeight));
  }
}

template <class Node>
ExpressionPtr ExpressionParser::make_on(int line, Node node, int below) {
  if (below >= kMaxTreeHeight) {
    tokens_.fail_at(line, fmt::format("an expression is more than {} operations deep", kMaxTreeHeight));
  }
  return std::make_unique<const Expression>(Expression{line, below + 1, std::move(node)});
}

template <class Node>
ExpressionPtr ExpressionParser::make(int line, Node node, std::initializer_list<const Expression*> below) {
  int height = 0;
  for (const Expression* expression : below) height = std::max(height, height_of(expression));
  return make_on(line, std::move(node), height);
}

ExpressionPtr ExpressionParser::make_list(int line, ListOf list) {
  const auto highest = std::max_element(list.items.begin(), list.items.end(),
                                        [](const auto& a, const auto& b) { return a->height < b->height; });
  const Expression* below = highest == list.items.end() ? nullptr : highest->get();
  return make(line, std::move(list), {below});
}

ExpressionPtr ExpressionParser::parse(bool with_condition) {
  const Level level(*this);
  int line = tokens_.line();
  const size_t first_missing = missing_.size();
  const size_t first_call = called_.size();
  ExpressionPtr value = parse_or();
  while (with_condition && tokens_.skip_name("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = tokens_.skip_name("else") ? parse() : nullptr;
    const std::initializer_list<const Expression*> below = {value.get(), condition.get(), otherwise.get()};
    guard_from(first_missing, first_call);
    value = make(line, Conditional{std::move(condition), std::move(value), std::move(otherwise)}, below);
    line = tokens_.line();
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  int line = tokens_.line();
  ExpressionPtr left = parse_and();
  while (tokens_.skip_name("or")) {
    ExpressionPtr right = parse_and();
    const std::initializer_list<const Expression*> below = {left.get(), right.get()};
    left = make(line, Logical{false, std::move(left), std::move(right)}, below);
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  int line = tokens_.line();
  ExpressionPtr left = parse_not();
  while (tokens_.skip_name("and")) {
    ExpressionPtr right = parse_not();
    const std::initializer_list<const Expression*> below = {left.get(), right.get()};
    left = make(line, Logical{true, std::move(left), std::move(right)}, below);
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!tokens_.is_name("not")) return parse_comparison();
  const Level level(*this);
  const int line = tokens_.next().line;
  ExpressionPtr operand = parse_not();
  const Expression* below = operand.get();
  return make(line, UnaryUse{Unary::kNot, std::move(operand)}, {below});
}

ExpressionPtr ExpressionParser::parse_comparison() {
  constexpr std::array<std::pair<const char*, Comparison>, 6> kSigns = {{{"==", Comparison::kEqual},
                                                                         {"!=", Comparison::kUnequal},
                                                                         {"<", Comparison::kLess},
                                                                         {"<=", Comparison::kLessOrEqual},
                                                                         {">", Comparison::kGreater},
                                                                         {">=", Comparison::kGreaterOrEqual}}};
  const int line = tokens_.line();
  ComparisonChain chain{parse_sum(), {}};
  const Expression* highest = chain.first.get();
  const auto add = [&](Comparison comparison) {
    chain.rest.emplace_back(comparison, parse_sum());
    if (chain.rest.back().second->height > highest->height) highest = chain.rest.back().second.get();
  };
  while (true) {
    const auto sign =
        std::find_if(kSigns.begin(), kSigns.end(), [&](const auto& known) { return tokens_.is_operator(known.first); });
    if (sign != kSigns.end()) {
      tokens_.next();
      add(sign->second);
    } else if (tokens_.skip_name("in")) {
      add(Comparison::kIn);
    } else if (tokens_.is_name("not") && tokens_.following().kind == Token::Kind::kName &&
               tokens_.following().value == "in") {
      tokens_.next();
      tokens_.next();
      add(Comparison::kNotIn);
    } else {
      break;
    }
  }
  if (chain.rest.empty()) return std::move(chain.first);
  return make(line, std::move(chain), {highest});
}

ExpressionPtr ExpressionParser::parse_sum() {
  int line = tokens_.line();
  ExpressionPtr left = parse_concatenation();
  while (tokens_.is_operator("+") || tokens_.is_operator("-")) {
    const Binary binary = tokens_.next().value == "+" ? Binary::kAdd : Binary::kSubtract;
    ExpressionPtr right = parse_concatenation();
    const std::initializer_list<const Expression*> below = {left.get(), right.get()};
    left = make(line, BinaryUse{binary, std::move(left), std::move(right)}, below);
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int line = tokens_.line();
  Concatenation whole;
  whole.parts.push_back(parse_product());
  const Expression* highest = whole.parts[0].get();
  while (tokens_.skip_operator("~")) {
    whole.parts.push_back(parse_product());
    if (whole.parts.back()->height > highest->height) highest = whole.parts.back().get();
  }
  if (whole.parts.size() == 1) return std::move(whole.parts[0]);
  return make(line, std::move(whole), {highest});
}

ExpressionPtr ExpressionParser::parse_product() {
  constexpr std::array<std::pair<const char*, Binary>, 4> kSigns = {
      {{"*", Binary::kMultiply}, {"/", Binary::kDivide}, {"//", Binary::kFloorDivide}, {"%", Binary::kModulo}}};
  int line = tokens_.line();
  ExpressionPtr left = parse_power();
  while (true) {
    const auto sign =
        std::find_if(kSigns.begin(), kSigns.end(), [&](const auto& known) { return tokens_.is_operator(known.first); });
    if (sign == kSigns.end()) return left;
    tokens_.next();
    ExpressionPtr right = parse_power();
    const std::initializer_list<const Expression*> below = {left.get(), right.get()};
    left = make(line, BinaryUse{sign->second, std::move(left), std::move(right)}, below);
    line = tokens_.line();
  }
}

ExpressionPtr ExpressionParser::parse_power() {
  int line = tokens_.line();
  ExpressionPtr left = parse_unary();
  while (tokens_.skip_operator("**")) {
    ExpressionPtr right = parse_unary();
    const std::initializer_list<const Expression*> below = {left.get(), right.get()};
    left = make(line, BinaryUse{Binary::kPower, std::move(left), std::move(right)}, below);
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const int line = tokens_.line();
  ExpressionPtr operand;
  if (tokens_.is_operator("-") || tokens_.is_operator("+")) {
    const Level level(*this);
    const Unary unary = tokens_.next().value == "-" ? Unary::kNegative : Unary::kPositive;
    ExpressionPtr inner = parse_unary(false);
    const Expression* below = inner.get();
    operand = make(line, UnaryUse{unary, std::move(inner)}, {below});
  } else {
    operand = parse_primary();
  }
  operand = parse_postfix(std::move(operand));
  return with_filters ? parse_filters(std::move(operand)) : std::move(operand);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Level level(*this);
  const int line = tokens_.line();
  switch (tokens_.current().kind) {
    case Token::Kind::kName: {
      const std::string name = tokens_.next().value;
      if (name == "true" || name == "True") return make(line, Literal{Value(true)}, {});
      if (name == "false" || name == "False") return make(line, Literal{Value(false)}, {});
      if (name == "none" || name == "None") return make(line, Literal{Value::none()}, {});
      if (name == "lipsum" || name == "self") tokens_.fail_at(line, fmt::format("\"{}\" is not supported", name));
      const size_t number = tree_.number_of_name(name);
      events_.push_back({number, false, line});
      return make(line, NameUse{number}, {});
    }
    case Token::Kind::kText: {
      std::string text = tokens_.next().value;
      while (tokens_.is(Token::Kind::kText)) text += tokens_.next().value;
      return make(line, Literal{Value::text(std::move(text))}, {});
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
      return make(token.line, Literal{Value(parse_whole(token.value, 0).value_or(0))}, {});
    }
    return make(token.line, Literal{Value(parse_real(token.value).value_or(0))}, {});
  } catch (const Failure& failure) {
    tokens_.fail_at(token.line, failure.message);
  }
}

bool ExpressionParser::is_tuple_end(std::string_view end) const {
  return tokens_.is(Token::Kind::kPrintEnd) || tokens_.is(Token::Kind::kBlockEnd) || tokens_.is_operator(")") ||
         (!end.empty() && tokens_.is_name(end));
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_condition, std::string_view end, bool in_parentheses) {
  int line = tokens_.line();
  ListOf tuple{{}, true};
  bool is_tuple = false;
  while (true) {
    if (!tuple.items.empty()) tokens_.expect_operator(",");
    if (is_tuple_end(end)) break;
    tuple.items.push_back(parse(with_condition));
    if (!tokens_.is_operator(",")) break;
    is_tuple = true;
    line = tokens_.line();
  }
  if (!is_tuple && !tuple.items.empty()) return std::move(tuple.items[0]);
  if (!is_tuple && !in_parentheses) {
    tokens_.fail(fmt::format("a value is missing before {}", TokenStream::describe(tokens_.current())));
  }
  return make_list(line, std::move(tuple));
}

ExpressionPtr ExpressionParser::parse_list() {
  const int line = tokens_.next().line;
  ListOf list{{}, false};
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
  DictOf dict;
  const Expression* highest = nullptr;
  while (!tokens_.is_operator("}")) {
    if (!dict.entries.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("}")) break;
    ExpressionPtr key = parse();
    tokens_.expect_operator(":");
    ExpressionPtr value = parse();
    for (const Expression* part : {key.get(), value.get()}) {
      if (part->height > height_of(highest)) highest = part;
    }
    dict.entries.emplace_back(std::move(key), std::move(value));
  }
  tokens_.expect_operator("}");
  return make(line, std::move(dict), {highest});
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
      const Expression* index = key.get();
      return make(token.line, ItemOf{std::move(operand), std::move(key)}, {object, index});
    }
    std::string name = tokens_.expect_name("an attribute's name");
    return make(token.line, AttributeOf{std::move(operand), std::move(name)}, {object});
  }
  SliceOf slice;
  bool is_slice = false;
  const auto at_part_end = [&] { return tokens_.is_operator(":") || tokens_.is_operator("]"); };
  if (!tokens_.is_operator(":")) slice.begin = parse();
  if (tokens_.is_operator(",")) tokens_.fail("several items between [ and ] are not supported");
  if (tokens_.skip_operator(":")) {
    is_slice = true;
    if (!at_part_end()) slice.end = parse();
    if (tokens_.skip_operator(":") && !at_part_end()) slice.step = parse();
  }
  tokens_.expect_operator("]");
  const std::initializer_list<const Expression*> below = {object, slice.begin.get(), slice.end.get(), slice.step.get()};
  if (!is_slice) return make(token.line, ItemOf{std::move(operand), std::move(slice.begin)}, below);
  slice.object = std::move(operand);
  return make(token.line, std::move(slice), below);
}

CallArguments ExpressionParser::parse_arguments() {
  const int line = tokens_.line();
  tokens_.expect_operator("(");
  CallArguments arguments;
  const auto ensure = [&](bool holds) {
    if (!holds) tokens_.fail_at(line, "the arguments of a call are out of order");
  };
  for (bool first = true; !tokens_.is_operator(")"); first = false) {
    if (!first) {
      tokens_.expect_operator(",");
      if (tokens_.is_operator(")")) break;
    }
    const bool is_keyword = tokens_.is(Token::Kind::kName) && tokens_.following().kind == Token::Kind::kOperator &&
                            tokens_.following().value == "=";
    if (tokens_.skip_operator("*")) {
      ensure(!arguments.all_positional && !arguments.all_keyword);
      arguments.all_positional = parse();
    } else if (tokens_.skip_operator("**")) {
      ensure(!arguments.all_keyword);
      arguments.all_keyword = parse();
    } else if (is_keyword) {
      ensure(!arguments.all_keyword);
      std::string name = tokens_.next().value;
      tokens_.next();
      arguments.keyword.emplace_back(std::move(name), parse());
    } else {
      ensure(!arguments.all_positional && !arguments.all_keyword && arguments.keyword.empty());
      arguments.positional.push_back(parse());
    }
  }
  tokens_.expect_operator(")");
  return arguments;
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  const int line = tokens_.line();
  if (const auto* name = std::get_if<NameUse>(&callee->node)) called_.push_back({name->name, line, false});
  if (const auto* attribute = std::get_if<AttributeOf>(&callee->node)) {
    if (is_unsupported_method(attribute->name)) {
      tokens_.fail_at(line, fmt::format("the method {}() is not supported", attribute->name));
    }
  }
  CallArguments arguments = parse_arguments();
  const int below = std::max(callee->height, height_of(arguments));
  return make_on(line, Call{std::move(callee), std::move(arguments)}, below);
}

std::string ExpressionParser::parse_dotted_name(std::string_view what) {
  std::string name = tokens_.expect_name(what);
  while (tokens_.skip_operator(".")) name.append(".").append(tokens_.expect_name(what));
  return name;
}

void ExpressionParser::check_named(const CallArguments& arguments, size_t index, bool filter, int line) {
  if (index >= arguments.positional.size()) return;
  const Value* named = literal_of(arguments.positional[index].get());
  if (named == nullptr || named->text() == nullptr) return;
  const std::string_view name = named->text()->view();
  const Method* found = filter ? find_filter(name) : find_test(name);
  if (found == nullptr) missing(line, filter ? "filter" : "test", name);
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr operand) {
  const int line = tokens_.line();
  const std::string name = parse_dotted_name("a filter's name");
  const Method* filter = find_filter(name);
  if (filter == nullptr) missing(line, "filter", name);
  FilterUse use{filter, name, std::move(operand), {}};
  if (tokens_.is_operator("(")) use.arguments = parse_arguments();
  if (name == "map") check_named(use.arguments, 0, true, line);
  if (name == "select" || name == "reject") check_named(use.arguments, 0, false, line);
  if (name == "selectattr" || name == "rejectattr") check_named(use.arguments, 1, false, line);
  const int below = std::max(height_of(use.operand.get()), height_of(use.arguments));
  return make_on(line, std::move(use), below);
}

ExpressionPtr ExpressionParser::parse_block_filter(bool at_name) {
  ExpressionPtr filtered;
  while (at_name || tokens_.is_operator("|")) {
    if (!std::exchange(at_name, false)) tokens_.next();
    filtered = parse_filter(std::move(filtered));
  }
  return filtered;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr operand) {
  const Level level(*this);
  const int line = tokens_.next().line;
  const bool negated = tokens_.skip_name("not");
  const std::string name = parse_dotted_name("a test's name");
  const Method* test = find_test(name);
  if (test == nullptr) missing(line, "test", name);
  CallArguments arguments;
  const Token::Kind kind = tokens_.current().kind;
  const bool begins_value = kind == Token::Kind::kName || kind == Token::Kind::kText || kind == Token::Kind::kInteger ||
                            kind == Token::Kind::kFloat || tokens_.is_operator("[") || tokens_.is_operator("{");
  if (tokens_.is_operator("(")) {
    arguments = parse_arguments();
  } else if (begins_value && !tokens_.is_name("else") && !tokens_.is_name("or") && !tokens_.is_name("and")) {
    if (tokens_.is_name("is")) tokens_.fail("tests cannot be chained with \"is\"");
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  const int below = std::max(operand->height, height_of(arguments));
  ExpressionPtr result = make_on(line, TestUse{test, name, std::move(operand), std::move(arguments)}, below);
  if (!negated) return result;
  const Expression* inner = result.get();
  return make(line, UnaryUse{Unary::kNot, std::move(result)}, {inner});
}

Target ExpressionParser::parse_name_target() {
  Target target;
  const int line = tokens_.line();
  const std::string name = tokens_.expect_name("a name");
  for (const char* constant : {"true", "True", "false", "False", "none", "None"}) {
    if (name == constant) tokens_.fail_at(line, fmt::format("nothing can be given to {}", name));
  }
  target.name = tree_.number_of_name(name);
  return target;
}

Target ExpressionParser::parse_target_part(bool with_attributes) {
  const Level level(*this);
  if (tokens_.skip_operator("(")) {
    Target inner = parse_targets(false, {}, true);
    tokens_.expect_operator(")");
    return inner;
  }
  Target target = parse_name_target();
  if (with_attributes && tokens_.skip_operator(".")) {
    target.attribute = tokens_.expect_name("an attribute's name");
    events_.push_back({target.name, false, tokens_.line()});
  } else {
    stored(target.name);
  }
  return target;
}

Target ExpressionParser::parse_targets(bool with_attributes, std::string_view end, bool in_parentheses) {
  Target whole;
  while (true) {
    if (!whole.parts.empty()) tokens_.expect_operator(",");
    if (is_tuple_end(end)) break;
    whole.parts.push_back(parse_target_part(with_attributes));
    if (!tokens_.is_operator(",")) break;
    whole.is_tuple = true;
  }
  if (!whole.is_tuple && !whole.parts.empty()) {
    Target only = std::move(whole.parts[0]);
    return only;
  }
  if (whole.parts.empty() && !in_parentheses) tokens_.fail("a name is missing");
  whole.is_tuple = true;
  return whole;
}

Target ExpressionParser::parse_target(bool with_attributes, std::string_view end) {
  return parse_targets(with_attributes, end, false);
}

void ExpressionParser::missing(int line, std::string_view kind, std::string_view name) {
  missing_.push_back(
      {line, fmt::format("there is no {} \"{}\"; docs/chat-templates.md lists those that there are", kind, name),
       false});
}

void ExpressionParser::guard_from(size_t first_missing, size_t first_call) {
  for (size_t i = first_missing; i < missing_.size(); ++i) missing_[i].is_guarded = true;
  for (size_t i = first_call; i < called_.size(); ++i) called_[i].is_guarded = true;
}

void ExpressionParser::check_names() const {
  std::vector<Missing> all = missing_;
  for (const CalledName& call : called_) {
    const bool is_there = !tree_.functions[call.name].is_undefined() || call.name <= kKwargsName ||
                          std::any_of(events_.begin(), events_.end(), [&](const NameEvent& event) {
                            return event.is_store && event.name == call.name;
                          });
    if (is_there) continue;
    all.push_back({call.line,
                   fmt::format("there is no function \"{}\"; docs/chat-templates.md lists those that there are",
                               tree_.names[call.name]),
                   call.is_guarded});
  }
  std::stable_sort(all.begin(), all.end(), [](const Missing& a, const Missing& b) { return a.line < b.line; });
  const auto first = std::find_if(all.begin(), all.end(), [](const Missing& each) { return !each.is_guarded; });
  if (first != all.end()) tokens_.fail_at(first->line, first->message);
}

}  // namespace vlmtrain::text::jinja
