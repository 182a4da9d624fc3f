// Compares the interpreter of chat templates with jinja2 (scripts/make_jinja_goldens.py); checks
// the origin of characters, and the limits for hostile templates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <thread>

#include "text/jinja/template.h"
#include "text/test_data.h"

namespace vlmtrain::text::jinja {
namespace {

using Json = nlohmann::ordered_json;
using Variables = std::vector<std::pair<std::string, Value>>;

const Json& load_goldens() {
  static const Json parsed = Json::parse(std::ifstream(get_data_path("jinja_goldens.json")));
  return parsed;
}

Variables make_plain_variables(const Json& json) {
  Variables variables;
  for (const auto& [name, value] : json.items()) variables.emplace_back(name, Value::from_json(value));
  return variables;
}

/// Returns the value with an origin for each text.
Value make_tracked_value(const Json& json, int& next_origin) {
  if (json.is_string()) return Value::text(json.get<std::string>(), next_origin++);
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(make_tracked_value(item, next_origin));
    return Value::list(std::move(items));
  }
  if (!json.is_object()) return Value::from_json(json);
  std::vector<std::pair<std::string, Value>> entries;
  for (const auto& [key, value] : json.items()) entries.emplace_back(key, make_tracked_value(value, next_origin));
  return Value::dict(std::move(entries));
}

Variables make_tracked_variables(const Json& json) {
  int next_origin = 0;
  Variables variables;
  for (const auto& [name, value] : json.items()) variables.emplace_back(name, make_tracked_value(value, next_origin));
  return variables;
}

RenderSettings make_settings() {
  return {load_goldens()["now"].get<std::string>()};
}

std::string render(const std::string& source, const Variables& variables) {
  return Template::parse(source, "a.jinja").render(variables, make_settings()).text;
}

/// Checks the invariants of RenderedText::origin_spans.
void expect_valid_origin_spans(const RenderedText& rendering) {
  size_t end = 0;
  for (size_t i = 0; i < rendering.origin_spans.size(); ++i) {
    const OriginSpan& origin_span = rendering.origin_spans[i];
    EXPECT_LE(end, origin_span.begin);
    EXPECT_LE(origin_span.begin, origin_span.end);
    EXPECT_LE(origin_span.end, rendering.text.size());
    const bool is_adjacent = i > 0 && end == origin_span.begin;
    EXPECT_FALSE(is_adjacent && rendering.origin_spans[i - 1].origin == origin_span.origin) << rendering.text;
    end = origin_span.end;
  }
}

void expect_same_as_jinja2(const std::string& source, const Json& json, const Json& expected) {
  for (const Variables& variables : {make_plain_variables(json), make_tracked_variables(json)}) {
    try {
      const RenderedText rendering = Template::parse(source, "a.jinja").render(variables, make_settings());
      EXPECT_TRUE(expected.contains("text")) << "jinja2 refuses: " << source << "\nours: " << rendering.text;
      EXPECT_EQ(rendering.text, expected.value("text", rendering.text)) << source;
      expect_valid_origin_spans(rendering);
    } catch (const UserError& error) {
      EXPECT_TRUE(expected.contains("error")) << source << "\n" << error.what();
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      EXPECT_THAT(error.what(), testing::StartsWith("a.jinja:"));
    }
  }
}

TEST(JinjaTest, SnippetsMatchJinja2) {
  ASSERT_GT(load_goldens()["snippets"].size(), 250U);
  for (const auto& snippet : load_goldens()["snippets"]) {
    expect_same_as_jinja2(snippet["template"].get<std::string>(), load_goldens()["variables"], snippet);
  }
}

TEST(JinjaTest, TemplatesMatchJinja2) {
  const auto& conversations = load_goldens()["conversations"];
  ASSERT_EQ(conversations.size(), 12U);
  ASSERT_GE(load_goldens()["templates"].size(), 12U);
  for (const auto& golden : load_goldens()["templates"]) {
    for (size_t i = 0; i < conversations.size(); ++i) {
      SCOPED_TRACE(golden["name"].get<std::string>() + ", " + conversations[i]["name"].get<std::string>());
      expect_same_as_jinja2(golden["template"].get<std::string>(), conversations[i]["variables"], golden["renders"][i]);
    }
  }
}

TEST(JinjaTest, RenderIsThreadSafe) {
  const auto& conversations = load_goldens()["conversations"];
  const auto& golden = load_goldens()["templates"].back();
  const Template chat_template = Template::parse(golden["template"].get<std::string>(), "a.jinja");
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  const Variables variables = make_tracked_variables(conversations[7]["variables"]);
  for (std::string& text : texts) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) text = chat_template.render(variables, make_settings()).text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(texts, testing::Each(golden["renders"][7]["text"].get<std::string>()));
}

/// Returns a rendering with its origin spans: 0[…] for characters of origin 0, and so on.
std::string render_with_origins(const std::string& source) {
  const Variables variables = {
      {"a", Value::text("Hello wörld", 0)},
      {"b", Value::text("x,y,,z", 1)},
      {"none_of_it", Value::text("", 2)},
      {"padded", Value::text("  pad\n", 3)},
      {"space", Value::text(" \n ", 4)},
      {"m", Value::dict({{"content", Value::text("<think>why</think>\n\nso", 5)}, {"role", Value::text("user")}})},
      {"lines", Value::text("one\ntwo\r\nthree", 6)},
      {"quoted", Value::text("say \"é\"\n", 7)},
      {"list", Value::list({Value::text("p", 8), Value::text("q", 9)})},
      {"sharp", Value::text("straße", 10)},
  };
  const RenderedText rendering = Template::parse(source, "a.jinja").render(variables, {"2026-11-22"});
  std::string out;
  size_t pos = 0;
  for (const OriginSpan& origin_span : rendering.origin_spans) {
    out += rendering.text.substr(pos, origin_span.begin - pos) + std::to_string(origin_span.origin) + "[";
    out += rendering.text.substr(origin_span.begin, origin_span.end - origin_span.begin) + "]";
    pos = origin_span.end;
  }
  return out + rendering.text.substr(pos);
}

TEST(JinjaOriginTest, PrintedTextKeepsItsOrigin) {
  EXPECT_EQ(render_with_origins("<{{ a }}>"), "<0[Hello wörld]>");
  EXPECT_EQ(render_with_origins("{{ a }}{{ a }}{{ b }}"), "0[Hello wörldHello wörld]1[x,y,,z]");
  EXPECT_EQ(render_with_origins("{{ m.role }}: {{ m['content'] }}"), "user: 5[<think>why</think>\n\nso]");
  EXPECT_EQ(render_with_origins("{{ 1 }}{{ none }}{{ 2.5 }}"), "1None2.5");
}

TEST(JinjaOriginTest, EmptyTextLeavesAnEmptySpan) {
  EXPECT_EQ(render_with_origins("<{{ none_of_it }}>"), "<2[]>");
  EXPECT_EQ(render_with_origins("{{ 'A: ' + none_of_it + '!' }}"), "A: 2[]!");
  EXPECT_EQ(render_with_origins("{{ '<' ~ none_of_it ~ '>' }}"), "<2[]>");
  EXPECT_EQ(render_with_origins("<{{ space | trim }}>{{ space.strip() }}|{{ space.strip() }}"), "<4[]>4[]|4[]");
  EXPECT_EQ(render_with_origins("{{ a[5:5] }}{{ a[100:] }}|{{ m.content.split('so')[-1] }}"), "0[]|5[]");
  EXPECT_EQ(render_with_origins("<{{ a | replace('Hello wörld', '') }}>"), "<0[]>");
  EXPECT_EQ(render_with_origins("{% set x %}{{ none_of_it }}{% endset %}<{{ x }}>"), "<2[]>");
  EXPECT_EQ(render_with_origins("{% macro t(x) %}{{ x }}{% endmacro %}<{{ t(none_of_it) }}>"), "<2[]>");
  EXPECT_EQ(render_with_origins("{{ none_of_it | upper }}|{{ none_of_it | tojson }}|{{ none_of_it | indent }}"),
            "2[]|\"2[]\"|2[]");
  EXPECT_EQ(render_with_origins("{{ '%s!' % none_of_it }}{{ none_of_it ~ none_of_it }}"), "2[]!2[]");
}

TEST(JinjaOriginTest, NoEmptySpanNextToTextOfItsOrigin) {
  EXPECT_EQ(render_with_origins("{{ a[0:0] }}{{ a }}{{ a[0:0] }}"), "0[Hello wörld]");
  EXPECT_EQ(render_with_origins("{{ none_of_it }}{{ none_of_it }}"), "2[]");
  EXPECT_EQ(render_with_origins("{{ a[0:0] }}{{ none_of_it }}{{ a }}"), "2[]0[Hello wörld]");
}

TEST(JinjaOriginTest, JoinedText) {
  EXPECT_EQ(render_with_origins("{{ 'Q: ' + a + '\\n' + b }}"), "Q: 0[Hello wörld]\n1[x,y,,z]");
  EXPECT_EQ(render_with_origins("{{ a ~ 1 ~ b }}"), "0[Hello wörld]11[x,y,,z]");
  EXPECT_EQ(render_with_origins("{{ list | join('-') }} {{ ', '.join(list) }} {{ a.join(['<', '>']) }}"),
            "8[p]-9[q] 8[p], 9[q] <0[Hello wörld]>");
  EXPECT_EQ(render_with_origins("{{ list[0] * 3 }}"), "8[ppp]");
}

TEST(JinjaOriginTest, ExtractedText) {
  EXPECT_EQ(render_with_origins("{{ a[6:8] }}|{{ a[7] }}|{{ ('<' + a)[:3] }}|{{ a[::-1] }}"),
            "0[wö]|0[ö]|<0[He]|0[dlröw olleH]");
  EXPECT_EQ(render_with_origins(
                "{{ padded.strip() }}|{{ padded | trim }}|{{ padded.rstrip() }}|{{ ('>' ~ padded).lstrip('> ') }}"),
            "3[pad]|3[pad]|3[  pad]|3[pad\n]");
  EXPECT_EQ(render_with_origins("{% for part in b.split(',') %}{{ part }};{% endfor %}"), "1[x];1[y];1[];1[z];");
  EXPECT_EQ(render_with_origins("{{ m.content.split('</think>')[-1].lstrip('\\n') }}"), "5[so]");
  EXPECT_EQ(render_with_origins("{{ m.content.rsplit('>', 1)[1] }}{{ m.content.partition('</think>')[0] }}"),
            "5[\n\nso<think>why]");
  EXPECT_EQ(render_with_origins("{{ lines.splitlines() | join('/') }}"), "6[one]/6[two]/6[three]");
  EXPECT_EQ(render_with_origins("{{ a.removeprefix('Hello ') }}|{{ a.removesuffix('ld') }}"), "0[wörld]|0[Hello wör]");
  EXPECT_EQ(render_with_origins("{% for c in a[4:8] %}{{ c }}.{% endfor %}{{ a | first }}{{ a | last }}"),
            "0[o].0[ ].0[w].0[ö].0[Hd]");
  EXPECT_EQ(render_with_origins("{{ a | truncate(8, true, '…', 0) }}"), "0[Hello w]…");
}

TEST(JinjaOriginTest, TransformedText) {
  EXPECT_EQ(render_with_origins("{{ a | replace('o', '0') }}|{{ a.replace('Hello', b) }}"),
            "0[Hell]00[ wörld]|1[x,y,,z]0[ wörld]");
  EXPECT_EQ(render_with_origins("{{ sharp | upper }}!{{ sharp.upper() | lower }}{{ 'ab' | upper }}"),
            "10[STRASSE]!10[strasse]AB");
  EXPECT_EQ(render_with_origins("{{ a | capitalize }}{{ a | title }}{{ a.title() }}"),
            "0[Hello wörldHello WörldHello Wörld]");
  EXPECT_EQ(render_with_origins("{{ lines | indent(2) }}"), "6[one\n]  6[two\n]  6[three]");
  EXPECT_EQ(render_with_origins("{{ list[0].ljust(3, '.') }}{{ list[0].zfill(3) }}{{ list[0] | center(3) }}|"),
            "8[p]..008[p] 8[p] |");
  EXPECT_EQ(render_with_origins("{{ '<' + a | e }}{{ quoted | e }}"), "&lt;0[Hello wörld]7[say &#34;é&#34;\n]");
  EXPECT_EQ(
      render_with_origins("{{ '%s and %5s' % (a, list[0]) }}{{ '%.2s' | format(b) }}{{ '{}-{}'.format(list[1], 1) }}"),
      "0[Hello wörld] and     8[p]1[x,]9[q]-1");
  EXPECT_EQ(render_with_origins("{{ a | string | safe | default('x') }}{{ missing | default(b) }}"),
            "0[Hello wörld]1[x,y,,z]");
}

TEST(JinjaOriginTest, SerializedText) {
  EXPECT_EQ(render_with_origins("{{ quoted | tojson }}"), "\"7[say \\\"é\\\"\\n]\"");
  EXPECT_EQ(render_with_origins("{{ {'k': [a, 1]} | tojson }}"), "{\"k\": [\"0[Hello wörld]\", 1]}");
  EXPECT_EQ(render_with_origins("{{ [list[0], 'x'] }}"), "['8[p]', 'x']");
  EXPECT_EQ(render_with_origins("{{ a | length }}{{ a.find('w') }}{{ strftime_now('%Y') }}"), "1162026");
}

TEST(JinjaOriginTest, TextInBlocks) {
  EXPECT_EQ(render_with_origins("{% set x %}[{{ a }}]{% endset %}{{ x | upper }}"), "[0[HELLO WÖRLD]]");
  EXPECT_EQ(render_with_origins(
                "{% macro turn(t) %}<{{ t }}{{ caller() }}>{% endmacro %}{% call turn(list[0]) %}{{ b }}{% endcall %}"),
            "<8[p]1[x,y,,z]>");
  EXPECT_EQ(render_with_origins("{% filter trim | upper %}  {{ padded }}! {% endfilter %}"), "3[PAD\n]!");
  EXPECT_EQ(render_with_origins("{% generation %}{{ a }}<eos>{% endgeneration %}"), "0[Hello wörld]<eos>");
  EXPECT_EQ(render_with_origins(
                "{% set ns = namespace(t='') %}{% for x in list %}{% set ns.t = ns.t + x %}{% endfor %}{{ ns.t }}"),
            "8[p]9[q]");
}

std::string get_parse_error(const std::string& source) {
  try {
    Template::parse(source, "a.jinja");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(JinjaTest, UnknownNamesFailWhenParsing) {
  using testing::HasSubstr;
  EXPECT_THAT(get_parse_error("a\n{{ x | nope }}"), HasSubstr("a.jinja:2: the filter \"nope\" does not exist"));
  EXPECT_THAT(get_parse_error("{{ x is nope }}"), HasSubstr("a.jinja:1: the test \"nope\" does not exist"));
  EXPECT_THAT(get_parse_error("\n\n{% nope %}"), HasSubstr("a.jinja:3: the statement \"nope\" does not exist"));
  EXPECT_THAT(get_parse_error("{{ nope(1) }}"), HasSubstr("the function \"nope\" does not exist"));
  EXPECT_THAT(get_parse_error("{{ x | map('nope') }}"), HasSubstr("the filter \"nope\" does not exist"));
  EXPECT_THAT(get_parse_error("{{ x | selectattr('a', 'nope') }}"), HasSubstr("the test \"nope\" does not exist"));
  EXPECT_THAT(get_parse_error("{{ x.encode() }}"), HasSubstr("the method encode() is not supported"));
  EXPECT_THAT(get_parse_error("{% if x %}\n{{ 1 }}"), HasSubstr("the block of line 1 lacks its end, {% endif %}"));
  EXPECT_THAT(get_parse_error("{% if x %}{% endfor %}"),
              HasSubstr("unexpected \"endfor\"; expected elif or else or endif"));
  EXPECT_THAT(get_parse_error("{{ 'abc }}"), HasSubstr("a string lacks its closing quote"));
  EXPECT_THAT(get_parse_error("{{ a b }}"), HasSubstr("}} is missing before \"b\""));
  EXPECT_THAT(get_parse_error("\xff"), HasSubstr("a.jinja:1: the template is not UTF-8"));
  EXPECT_EQ(get_parse_error("{% macro m() %}{% endmacro %}{{ m() }}{% if f %}{{ f() }}{{ f | nope }}{% endif %}"), "");
}

TEST(JinjaTest, RaisedErrorsHaveMessageAndLine) {
  try {
    render("\n{% for x in [1] %}\n{{ raise_exception('only ' ~ x ~ ' role') }}{% endfor %}", {});
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_TRUE(error.is_raised_by_template());
    EXPECT_EQ(error.message(), "only 1 role");
    EXPECT_STREQ(error.what(), "a.jinja:3: only 1 role");
    EXPECT_EQ(error.code(), ExitCode::kBadData);
  }
  try {
    render("{{ x.y }}", {});
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_FALSE(error.is_raised_by_template());
    EXPECT_EQ(error.message(), "'x' is undefined");
  }
  EXPECT_THROW(Template::parse("{{ strftime_now('%Y') }}", "a.jinja").render({}, {}), TemplateError);
}

std::string repeat(std::string_view text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

/// Returns the error of a template that exceeds a limit.
std::string get_render_error(const std::string& source) {
  try {
    render(source, {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "it was rendered";
}

TEST(JinjaTest, EndlessTemplatesAreStopped) {
  using testing::HasSubstr;
  const std::string endless = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}";
  EXPECT_THAT(get_render_error(endless), HasSubstr("more than 10000000 steps"));
  EXPECT_THAT(get_render_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("calls and blocks are nested more than"));
  EXPECT_THAT(get_render_error("{{ range(10 ** 12) }}"), HasSubstr("more than 100000 numbers"));
  EXPECT_THAT(get_render_error("{{ 'x' * 10 ** 12 }}"), HasSubstr("a string or list exceeds 32 MiB"));
  EXPECT_THAT(get_render_error("{{ [1] * 10 ** 12 }}"), HasSubstr("a string or list exceeds 32 MiB"));
  EXPECT_THAT(get_render_error("{{ 'x'.center(10 ** 12) }}"), HasSubstr("a string or list exceeds"));
  EXPECT_THAT(get_render_error("{{ '%9999999d' % 1 }}"),
              HasSubstr("a format string requests more than 1000 characters"));
  EXPECT_THAT(get_render_error("{{ 10 ** 30 }}"), HasSubstr("an integer exceeds 64 bits"));
  const std::string doubling =
      "{% set n = namespace(x=['a']) %}{% for i in range(100) %}{% set n.x = [n.x, n.x] %}{% endfor %}";
  const auto hits_limit = testing::AnyOf(HasSubstr("a string or list exceeds"), HasSubstr("takes more than"),
                                         HasSubstr("creates more than"));
  EXPECT_THAT(get_render_error(doubling + "{{ n.x }}"), hits_limit);
  EXPECT_THAT(get_render_error(doubling + "{{ n.x | tojson }}"), hits_limit);
  EXPECT_THAT(get_render_error(doubling + "{% set o = n.x %}" + doubling + "{{ o == n.x }}"), hits_limit);
  const std::string deepening =
      "{% set n = namespace(x=1) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}";
  EXPECT_THAT(get_render_error(deepening), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(
      get_render_error("{% set n = namespace(x='x') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}"),
      hits_limit);
  EXPECT_THAT(get_render_error("{% set x = 'x' * 30000000 %}{% for i in range(99) %}{{ x[1:] | length }}{% endfor %}"),
              hits_limit);
}

TEST(JinjaTest, DeeplyNestedSourceIsRejected) {
  using testing::HasSubstr;
  const std::vector<std::pair<const char*, const char*>> nesting_pairs = {
      {"(", ")"},           {"[", "]"},  {"{1:", "}"}, {"not ", ""},      {"-", ""},
      {"1 if 1 else ", ""}, {"x[", "]"}, {"f(", ")"},  {"x is eq (", ")"}};
  for (const auto& [opening, closing] : nesting_pairs) {
    const std::string source = "{{ " + repeat(opening, 50'000) + "1" + repeat(closing, 50'000) + " }}";
    EXPECT_THAT(get_parse_error(source), HasSubstr("deep")) << opening;
  }
  EXPECT_THAT(get_parse_error(repeat("{% if 1 %}", 50'000)), HasSubstr("deep"));
  EXPECT_THAT(get_parse_error(repeat("{% for a in b %}", 50'000)), HasSubstr("deep"));
  EXPECT_THAT(get_parse_error("{% for " + repeat("(", 50'000) + "a" + repeat(",)", 50'000) + " in b %}{% endfor %}"),
              HasSubstr("deep"));
  EXPECT_THAT(get_parse_error("{{ 1" + repeat("+1", 100'000) + " }}"), HasSubstr("operations deep"));
  EXPECT_THAT(get_parse_error("{{ x" + repeat(".y", 100'000) + " }}"), HasSubstr("operations deep"));
  EXPECT_THAT(get_parse_error("{{ x" + repeat("|trim", 100'000) + " }}"), HasSubstr("operations deep"));
  EXPECT_EQ(render("{{ 1" + repeat("+1", 200) + " }}{{ ''" + repeat("~1", 1000) + " }}", {}).size(), 1003U);
}

TEST(JinjaTest, ReferenceCyclesAreFreed) {
  // Leaks fail under AddressSanitizer.
  EXPECT_EQ(render("{% set n = namespace() %}{% set n.n = n %}{% macro m() %}{% endmacro %}{% set n.m = m %}"
                   "{% for x in [1] %}{% macro k() %}{{ x }}{% endmacro %}{% set n.k = k %}{% set n.l = loop %}"
                   "{{ loop.changed(loop) }}{% endfor %}{{ n.k() }}",
                   {}),
            "True1");
  const std::string prefix = "{% set n = namespace(x=0) %}{% for i in range(50000) %}{% set n.x = ";
  for (const char* container : {"namespace(x=n.x)", "joiner(n.x)", "cycler(n.x)", "{'x': n.x}"}) {
    get_render_error(prefix + container + " %}{% endfor %}");
  }
}

}  // namespace
}  // namespace vlmtrain::text::jinja
