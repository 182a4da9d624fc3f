#include "text/jinja/parser.h"

#include <algorithm>
#include <array>

#include "text/jinja/expression_parser.h"
#include "text/jinja/limits.h"

namespace vlmtrain::text::jinja {
namespace {

/// Reads statements.
class Parser {
 public:
  Parser(std::string_view source, std::string source_name)
      : tokens_(source, source_name), tree_(std::make_shared<Tree>()) {
    tree_->source_name = std::move(source_name);
    for (const char* name : {"loop", "caller", "varargs", "kwargs"}) tree_->number_of_name(name);
  }

  std::shared_ptr<const Tree> run() {
    tree_->body = parse_block({});
    expressions_.check_names();
    return tree_;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;
  using Level = ExpressionParser::Level;

  /// Statements up to a tag that begins with one of `ends`, of which the tag's begin is read; or to the template's end.
  Block parse_block(Ends ends) {
    Block block;
    while (true) {
      const int line = tokens_.line();
      switch (tokens_.current().kind) {
        case Token::Kind::kData:
          block.push_back({line, Data{tokens_.next().value}});
          break;
        case Token::Kind::kPrintBegin: {
          tokens_.next();
          Print print;
          print.values.push_back(expressions_.parse_tuple());
          tokens_.expect(Token::Kind::kPrintEnd, "}}");
          block.push_back({line, std::move(print)});
          break;
        }
        case Token::Kind::kBlockBegin: {
          tokens_.next();
          const bool ended =
              std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return tokens_.is_name(end); });
          if (ended) return block;
          block.push_back(parse_statement(ends));
          tokens_.expect(Token::Kind::kBlockEnd, "%}");
          break;
        }
        default:
          if (ends.size() != 0) {
            tokens_.fail(
                fmt::format("the block of line {} lacks its end, {{% {} %}}", open_.back(), *(ends.end() - 1)));
          }
          return block;
      }
    }
  }

  /// A block, of which the tag of the statement is read up to its last %}, and which ends with `end`.
  Block parse_body(std::string_view end) {
    Block body = begin_body({end});
    tokens_.next();
    return body;
  }

  /// The same; the name that ends it is the next token.
  Block begin_body(Ends ends) {
    const Level level(expressions_);
    open_.push_back(tokens_.line());
    tokens_.expect(Token::Kind::kBlockEnd, "%}");
    Block body = parse_block(ends);
    open_.pop_back();
    return body;
  }

  Statement parse_statement(Ends ends) {
    const int line = tokens_.line();
    const std::string name = tokens_.expect_name("a statement's name");
    struct Known {
      const char* name;
      Statement (Parser::*parse)(int line);
    };
    constexpr std::array kStatements = {
        Known{"for", &Parser::parse_for},         Known{"if", &Parser::parse_if},
        Known{"set", &Parser::parse_set},         Known{"macro", &Parser::parse_macro},
        Known{"call", &Parser::parse_call_block}, Known{"filter", &Parser::parse_filter_block},
        Known{"with", &Parser::parse_with},       Known{"generation", &Parser::parse_generation},
        Known{"break", &Parser::parse_break},     Known{"continue", &Parser::parse_continue},
        Known{"print", &Parser::parse_print},
    };
    for (const Known& known : kStatements) {
      if (name == known.name) return (this->*known.parse)(line);
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      std::string wanted;
      for (const std::string_view end : ends) wanted.append(wanted.empty() ? "" : " or ").append(end);
      tokens_.fail_at(line, wanted.empty() ? fmt::format("\"{}\" ends or continues nothing", name)
                                           : fmt::format("\"{}\" stands where {} is missing", name, wanted));
    }
    tokens_.fail_at(
        line, fmt::format("there is no statement \"{}\"; docs/chat-templates.md lists those that there are", name));
  }

  Statement parse_for(int line) {
    const size_t first_event = expressions_.events().size();
    For loop;
    loop.target = expressions_.parse_target(false, "in");
    if (!tokens_.skip_name("in")) tokens_.fail("a loop lacks its \"in\"");
    loop.items = expressions_.parse_tuple(false, "recursive");
    if (tokens_.skip_name("if")) loop.condition = expressions_.parse();
    if (tokens_.is_name("recursive")) tokens_.fail("recursive loops are not supported; use a macro");
    ++loops_;
    loop.body = begin_body({"else", "endfor"});
    --loops_;
    if (tokens_.skip_name("else")) {
      loop.otherwise = parse_body("endfor");
    } else {
      tokens_.next();
    }
    for (size_t i = first_event; i < expressions_.events().size(); ++i) {
      const NameEvent& event = expressions_.events()[i];
      if (event.is_store && event.name == kLoopName)
        tokens_.fail_at(event.line, "nothing can be given to \"loop\" in a loop");
    }
    return {line, std::move(loop)};
  }

  Statement parse_if(int line) {
    const ExpressionParser::Guard guard(expressions_);
    If choice;
    while (true) {
      ExpressionPtr condition = expressions_.parse_tuple(false);
      choice.branches.emplace_back(std::move(condition), begin_body({"elif", "else", "endif"}));
      if (tokens_.skip_name("elif")) continue;
      if (tokens_.skip_name("else")) {
        choice.otherwise = parse_body("endif");
      } else {
        tokens_.next();
      }
      return {line, std::move(choice)};
    }
  }

  Statement parse_set(int line) {
    Target target = expressions_.parse_target(true);
    if (tokens_.skip_operator("=")) return {line, Set{std::move(target), expressions_.parse_tuple()}};
    ExpressionPtr filtered = expressions_.parse_block_filter(false);
    return {line, SetBlock{std::move(target), std::move(filtered), parse_body("endset")}};
  }

  Signature parse_signature() {
    Signature signature;
    tokens_.expect_operator("(");
    while (!tokens_.is_operator(")")) {
      if (!signature.parameters.empty()) tokens_.expect_operator(",");
      const Target parameter = expressions_.parse_name_target();
      expressions_.stored(parameter.name);
      signature.parameters.push_back(parameter.name);
      if (tokens_.skip_operator("=")) {
        signature.defaults.push_back(expressions_.parse());
      } else if (!signature.defaults.empty()) {
        tokens_.fail("a parameter without a default follows one with a default");
      }
    }
    tokens_.expect_operator(")");
    return signature;
  }

  /// The body of what is called: its loops are its own, and what it reads says what it can be given.
  Block parse_called_body(std::string_view end, Signature& signature) {
    const size_t first_event = expressions_.events().size();
    const int loops = std::exchange(loops_, 0);
    Block body = parse_body(end);
    loops_ = loops;
    const auto reads = [&](size_t name) {
      for (size_t i = first_event; i < expressions_.events().size(); ++i) {
        if (expressions_.events()[i].name == name) return !expressions_.events()[i].is_store;
      }
      return false;
    };
    const auto is_parameter = [&](size_t name) {
      return std::find(signature.parameters.begin(), signature.parameters.end(), name) != signature.parameters.end();
    };
    signature.takes_caller = reads(kCallerName);
    signature.takes_more_positional = reads(kVarargsName) && !is_parameter(kVarargsName);
    signature.takes_more_keyword = reads(kKwargsName) && !is_parameter(kKwargsName);
    if (is_parameter(kCallerName)) {
      if (signature.takes_caller &&
          signature.parameters.size() - signature.defaults.size() >
              static_cast<size_t>(std::find(signature.parameters.begin(), signature.parameters.end(), kCallerName) -
                                  signature.parameters.begin())) {
        tokens_.fail("the parameter \"caller\" needs a default, or must be left out");
      }
      signature.takes_caller = false;
    }
    return body;
  }

  Statement parse_macro(int line) {
    MacroDefinition macro{expressions_.parse_name_target().name, {}, {}};
    expressions_.stored(macro.name);
    macro.signature = parse_signature();
    macro.body = parse_called_body("endmacro", macro.signature);
    return {line, std::move(macro)};
  }

  Statement parse_call_block(int line) {
    CallBlock block{nullptr, {kCallerName, {}, {}}};
    if (tokens_.is_operator("(")) block.caller.signature = parse_signature();
    block.call = expressions_.parse();
    if (!std::holds_alternative<Call>(block.call->node)) tokens_.fail_at(line, "a call block needs a call");
    block.caller.body = parse_called_body("endcall", block.caller.signature);
    return {line, std::move(block)};
  }

  Statement parse_filter_block(int line) {
    ExpressionPtr filtered = expressions_.parse_block_filter(true);
    return {line, FilterBlock{std::move(filtered), parse_body("endfilter")}};
  }

  Statement parse_with(int line) {
    With with;
    while (!tokens_.is(Token::Kind::kBlockEnd)) {
      if (!with.values.empty()) tokens_.expect_operator(",");
      Target target = expressions_.parse_name_target();
      expressions_.stored(target.name);
      tokens_.expect_operator("=");
      with.values.emplace_back(std::move(target), expressions_.parse());
    }
    with.body = parse_body("endwith");
    return {line, std::move(with)};
  }

  Statement parse_generation(int line) {
    Signature none;
    return {line, Generation{parse_called_body("endgeneration", none)}};
  }

  Statement parse_break(int line) {
    need_loop(line, "break");
    return {line, Break{}};
  }

  Statement parse_continue(int line) {
    need_loop(line, "continue");
    return {line, Continue{}};
  }

  void need_loop(int line, const char* name) const {
    if (loops_ == 0) tokens_.fail_at(line, fmt::format("\"{}\" stands outside of a loop", name));
  }

  Statement parse_print(int line) {
    Print print;
    while (!tokens_.is(Token::Kind::kBlockEnd)) {
      if (!print.values.empty()) tokens_.expect_operator(",");
      print.values.push_back(expressions_.parse());
    }
    return {line, std::move(print)};
  }

  TokenStream tokens_;
  std::shared_ptr<Tree> tree_;
  ExpressionParser expressions_{tokens_, *tree_};
  std::vector<int> open_;  // lines of the blocks that are open
  int loops_ = 0;
};

}  // namespace

std::shared_ptr<const Tree> parse(std::string_view source, std::string source_name) {
  if (source.size() > kMaxSourceBytes)
    throw data_error("{}: the template has more than {} MB", source_name, kMaxSourceBytes >> 20U);
  return Parser(source, std::move(source_name)).run();
}

}  // namespace vlmtrain::text::jinja
