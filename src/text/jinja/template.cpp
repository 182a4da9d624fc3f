#include "text/jinja/template.h"

#include <algorithm>
#include <array>

#include "text/jinja/evaluator.h"
#include "text/jinja/runtime/budget.h"
#include "text/jinja/syntax/expression_parser.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::text::jinja {
namespace {

/// A recursive-descent parser of statements. Throws UserError (bad data) "FILE:LINE: …" for syntax
/// errors.
class TemplateParser {
 public:
  TemplateParser(std::string_view source, std::string source_name)
      : tokens_(source, source_name), tree_(std::make_shared<SyntaxTree>()) {
    tree_->source_name = std::move(source_name);
    // In the order of kLoopNameIndex, kCallerNameIndex, kVarargsNameIndex and kKwargsNameIndex.
    for (const char* name : {"loop", "caller", "varargs", "kwargs"}) tree_->intern_name(name);
  }

  std::shared_ptr<const SyntaxTree> parse() {
    tree_->body = parse_block({});
    expression_parser_.reject_unknown_names();
    return tree_;
  }

 private:
  using EndTagNames = std::initializer_list<std::string_view>;
  using DepthGuard = ExpressionParser::DepthGuard;

  /// Parses statements up to a tag that begins with one of `end_tag_names`, and moves past its
  /// `{%`. Without `end_tag_names`, parses to the end of the template.
  Block parse_block(EndTagNames end_tag_names) {
    Block block;
    while (true) {
      const int line = tokens_.line();
      switch (tokens_.current().kind) {
        case Token::Kind::kData:
          block.push_back({line, TemplateData{tokens_.next().value}});
          break;
        case Token::Kind::kVariableBegin: {
          tokens_.next();
          PrintStatement print_statement;
          print_statement.values.push_back(expression_parser_.parse_tuple());
          tokens_.expect_kind(Token::Kind::kVariableEnd, "}}");
          block.push_back({line, std::move(print_statement)});
          break;
        }
        case Token::Kind::kBlockBegin: {
          tokens_.next();
          const bool is_end_tag =
              std::any_of(end_tag_names.begin(), end_tag_names.end(),
                          [&](std::string_view end_tag_name) { return tokens_.is_at_name(end_tag_name); });
          if (is_end_tag) return block;
          block.push_back(parse_statement(end_tag_names));
          tokens_.expect_kind(Token::Kind::kBlockEnd, "%}");
          break;
        }
        default:
          if (end_tag_names.size() != 0) {
            tokens_.throw_error(fmt::format("the block of line {} lacks its end, {{% {} %}}",
                                            enclosing_block_lines_.back(), *(end_tag_names.end() - 1)));
          }
          return block;
      }
    }
  }

  /// Parses the %} of a statement and its body. Moves past the name `end_tag_name` of the tag that
  /// ends the body.
  Block parse_body(std::string_view end_tag_name) {
    Block body = parse_body_before_end_tag({end_tag_name});
    tokens_.next();
    return body;
  }

  /// Parses the %} of a statement and its body. Stops at the name of the tag that ends the body,
  /// one of `end_tag_names`.
  Block parse_body_before_end_tag(EndTagNames end_tag_names) {
    const DepthGuard depth_guard(expression_parser_);
    enclosing_block_lines_.push_back(tokens_.line());
    tokens_.expect_kind(Token::Kind::kBlockEnd, "%}");
    Block body = parse_block(end_tag_names);
    enclosing_block_lines_.pop_back();
    return body;
  }

  /// Parses a statement without the %} at its end. `end_tag_names`, for messages: names that could
  /// end the enclosing block.
  Statement parse_statement(EndTagNames end_tag_names) {
    const int line = tokens_.line();
    const std::string name = tokens_.expect_name("a statement name");
    /// The name of a statement and its parse function.
    struct StatementParserEntry {
      const char* name;
      Statement (TemplateParser::*parse_function)(int line);
    };
    constexpr std::array kStatementParsers = {
        StatementParserEntry{"for", &TemplateParser::parse_for_loop},
        StatementParserEntry{"if", &TemplateParser::parse_if},
        StatementParserEntry{"set", &TemplateParser::parse_set},
        StatementParserEntry{"macro", &TemplateParser::parse_macro},
        StatementParserEntry{"call", &TemplateParser::parse_call_block},
        StatementParserEntry{"filter", &TemplateParser::parse_filter_block},
        StatementParserEntry{"with", &TemplateParser::parse_with_block},
        StatementParserEntry{"generation", &TemplateParser::parse_generation_block},
        StatementParserEntry{"break", &TemplateParser::parse_break},
        StatementParserEntry{"continue", &TemplateParser::parse_continue},
        StatementParserEntry{"print", &TemplateParser::parse_print},
    };
    for (const StatementParserEntry& statement : kStatementParsers) {
      if (name == statement.name) return (this->*statement.parse_function)(line);
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      std::string expected_names;
      for (const std::string_view end_tag_name : end_tag_names)
        expected_names.append(expected_names.empty() ? "" : " or ").append(end_tag_name);
      tokens_.throw_error_at_line(line, expected_names.empty()
                                            ? fmt::format("unexpected \"{}\" outside of a block", name)
                                            : fmt::format("unexpected \"{}\"; expected {}", name, expected_names));
    }
    tokens_.throw_error_at_line(line, describe_unknown_name("statement", name));
  }

  Statement parse_for_loop(int line) {
    const size_t first_name_access_index = expression_parser_.name_accesses().size();
    ForStatement loop;
    loop.target = expression_parser_.parse_assignment_target(false, "in");
    if (!tokens_.skip_if_name("in")) tokens_.throw_error("a loop lacks its \"in\"");
    loop.items = expression_parser_.parse_tuple(false, "recursive");
    if (tokens_.skip_if_name("if")) loop.condition = expression_parser_.parse();
    if (tokens_.is_at_name("recursive")) tokens_.throw_error("recursive loops are not supported; use a macro");
    ++loop_depth_;
    loop.body = parse_body_before_end_tag({"else", "endfor"});
    --loop_depth_;
    if (tokens_.skip_if_name("else")) {
      loop.else_body = parse_body("endfor");
    } else {
      tokens_.next();
    }
    for (size_t i = first_name_access_index; i < expression_parser_.name_accesses().size(); ++i) {
      const NameAccess& name_access = expression_parser_.name_accesses()[i];
      if (name_access.is_assignment && name_access.name == kLoopNameIndex)
        tokens_.throw_error_at_line(name_access.line, "cannot assign to \"loop\" in a loop");
    }
    return {line, std::move(loop)};
  }

  Statement parse_if(int line) {
    const ExpressionParser::IfGuard if_guard(expression_parser_);
    IfStatement if_statement;
    while (true) {
      ExpressionPtr condition = expression_parser_.parse_tuple(false);
      if_statement.branches.emplace_back(std::move(condition), parse_body_before_end_tag({"elif", "else", "endif"}));
      if (tokens_.skip_if_name("elif")) continue;
      if (tokens_.skip_if_name("else")) {
        if_statement.else_body = parse_body("endif");
      } else {
        tokens_.next();
      }
      return {line, std::move(if_statement)};
    }
  }

  Statement parse_set(int line) {
    AssignmentTarget target = expression_parser_.parse_assignment_target(true);
    if (tokens_.skip_if_operator("=")) return {line, SetStatement{std::move(target), expression_parser_.parse_tuple()}};
    ExpressionPtr filter = expression_parser_.parse_filter_chain(false);
    return {line, SetBlock{std::move(target), std::move(filter), parse_body("endset")}};
  }

  /// Parses the parameters of a macro or call block in parentheses.
  MacroSignature parse_signature() {
    MacroSignature signature;
    tokens_.expect_operator("(");
    while (!tokens_.is_at_operator(")")) {
      if (!signature.parameters.empty()) tokens_.expect_operator(",");
      const AssignmentTarget parameter = expression_parser_.parse_name_target();
      expression_parser_.record_assignment(parameter.name);
      signature.parameters.push_back(parameter.name);
      if (tokens_.skip_if_operator("=")) {
        signature.default_values.push_back(expression_parser_.parse());
      } else if (!signature.default_values.empty()) {
        tokens_.throw_error("a parameter without a default follows one with a default");
      }
    }
    tokens_.expect_operator(")");
    return signature;
  }

  /// Parses the body of a macro or call block, in which `break` and `continue` cannot refer to an
  /// outer loop. Sets the takes_… fields of `signature`: as in Jinja2, a body accepts additional
  /// arguments only if it reads `caller`, `varargs` or `kwargs`.
  Block parse_callable_body(std::string_view end_tag_name, MacroSignature& signature) {
    const size_t first_name_access_index = expression_parser_.name_accesses().size();
    const int outer_loop_depth = std::exchange(loop_depth_, 0);
    Block body = parse_body(end_tag_name);
    loop_depth_ = outer_loop_depth;
    const auto reads_name = [&](size_t name) {
      for (size_t i = first_name_access_index; i < expression_parser_.name_accesses().size(); ++i) {
        if (expression_parser_.name_accesses()[i].name == name)
          return !expression_parser_.name_accesses()[i].is_assignment;
      }
      return false;
    };
    const auto is_parameter = [&](size_t name) {
      return std::find(signature.parameters.begin(), signature.parameters.end(), name) != signature.parameters.end();
    };
    signature.takes_caller = reads_name(kCallerNameIndex);
    signature.takes_varargs = reads_name(kVarargsNameIndex) && !is_parameter(kVarargsNameIndex);
    signature.takes_kwargs = reads_name(kKwargsNameIndex) && !is_parameter(kKwargsNameIndex);
    if (is_parameter(kCallerNameIndex)) {
      if (signature.takes_caller && signature.parameters.size() - signature.default_values.size() >
                                        static_cast<size_t>(std::find(signature.parameters.begin(),
                                                                      signature.parameters.end(), kCallerNameIndex) -
                                                            signature.parameters.begin())) {
        tokens_.throw_error("the parameter \"caller\" needs a default; add one or remove it");
      }
      signature.takes_caller = false;
    }
    return body;
  }

  Statement parse_macro(int line) {
    MacroDefinition definition{expression_parser_.parse_name_target().name, {}, {}};
    expression_parser_.record_assignment(definition.name);
    definition.signature = parse_signature();
    definition.body = parse_callable_body("endmacro", definition.signature);
    return {line, std::move(definition)};
  }

  Statement parse_call_block(int line) {
    CallBlock block{nullptr, {kCallerNameIndex, {}, {}}};
    if (tokens_.is_at_operator("(")) block.caller.signature = parse_signature();
    block.call = expression_parser_.parse();
    if (!std::holds_alternative<Call>(block.call->node)) tokens_.throw_error_at_line(line, "a call block needs a call");
    block.caller.body = parse_callable_body("endcall", block.caller.signature);
    return {line, std::move(block)};
  }

  Statement parse_filter_block(int line) {
    ExpressionPtr filter = expression_parser_.parse_filter_chain(true);
    return {line, FilterBlock{std::move(filter), parse_body("endfilter")}};
  }

  Statement parse_with_block(int line) {
    WithStatement with_statement;
    while (!tokens_.is_at_kind(Token::Kind::kBlockEnd)) {
      if (!with_statement.assignments.empty()) tokens_.expect_operator(",");
      AssignmentTarget target = expression_parser_.parse_name_target();
      expression_parser_.record_assignment(target.name);
      tokens_.expect_operator("=");
      with_statement.assignments.emplace_back(std::move(target), expression_parser_.parse());
    }
    with_statement.body = parse_body("endwith");
    return {line, std::move(with_statement)};
  }

  Statement parse_generation_block(int line) {
    MacroSignature unused_signature;
    return {line, GenerationBlock{parse_callable_body("endgeneration", unused_signature)}};
  }

  Statement parse_break(int line) {
    check_inside_loop(line, "break");
    return {line, BreakStatement{}};
  }

  Statement parse_continue(int line) {
    check_inside_loop(line, "continue");
    return {line, ContinueStatement{}};
  }

  void check_inside_loop(int line, const char* name) const {
    if (loop_depth_ == 0) tokens_.throw_error_at_line(line, fmt::format("\"{}\" is used outside of a loop", name));
  }

  Statement parse_print(int line) {
    PrintStatement print_statement;
    while (!tokens_.is_at_kind(Token::Kind::kBlockEnd)) {
      if (!print_statement.values.empty()) tokens_.expect_operator(",");
      print_statement.values.push_back(expression_parser_.parse());
    }
    return {line, std::move(print_statement)};
  }

  TokenStream tokens_;
  std::shared_ptr<SyntaxTree> tree_;
  ExpressionParser expression_parser_{tokens_, *tree_};
  std::vector<int> enclosing_block_lines_;  // first lines of the enclosing blocks
  int loop_depth_ = 0;
};

/// Parses a template. Throws UserError (bad data) if it is too large or malformed.
std::shared_ptr<const SyntaxTree> parse_template(std::string_view source, std::string source_name) {
  if (source.size() > kMaxTemplateSourceBytes)
    throw data_error("{}: the template exceeds {} MiB; set another {}", source_name, kMaxTemplateSourceBytes >> 20U,
                     keys::data::kChatTemplate);
  return TemplateParser(source, std::move(source_name)).parse();
}

}  // namespace

TemplateError::TemplateError(std::string_view source_name, int line, std::string message, bool is_raised_by_template)
    : UserError(ExitCode::kBadData, fmt::format("{}:{}: {}", source_name, line, message)),
      message_(std::move(message)),
      is_raised_by_template_(is_raised_by_template) {}

Template Template::parse(std::string_view source, std::string source_name) {
  return Template(parse_template(source, std::move(source_name)));
}

RenderedText Template::render(const std::vector<std::pair<std::string, Value>>& variables,
                              const RenderSettings& settings) const {
  const TextWithOrigins text = Evaluator(*tree_, settings).render(variables);
  return {text.bytes(),
          {text.origin_spans().begin(), text.origin_spans().end()},
          {text.generated_spans().begin(), text.generated_spans().end()}};
}

}  // namespace vlmtrain::text::jinja
