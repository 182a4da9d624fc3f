// The interpreter of chat templates against jinja2 (scripts/make_jinja_goldens.py), where its characters come from, and
// what hostile templates meet.
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

const Json& goldens() {
  static const Json read = Json::parse(std::ifstream(data_path("jinja_goldens.json")));
  return read;
}

Variables plain_variables(const Json& json) {
  Variables variables;
  for (const auto& [name, value] : json.items()) variables.emplace_back(name, Value::of_json(value));
  return variables;
}

/// The same with an origin for each text.
Value with_origins(const Json& json, int& origins) {
  if (json.is_string()) return Value::text(json.get<std::string>(), origins++);
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(with_origins(item, origins));
    return Value::list(std::move(items));
  }
  if (!json.is_object()) return Value::of_json(json);
  std::vector<std::pair<std::string, Value>> entries;
  for (const auto& [key, value] : json.items()) entries.emplace_back(key, with_origins(value, origins));
  return Value::dict(std::move(entries));
}

Variables marked_variables(const Json& json) {
  int origins = 0;
  Variables variables;
  for (const auto& [name, value] : json.items()) variables.emplace_back(name, with_origins(value, origins));
  return variables;
}

RenderSettings settings() {
  return {goldens()["now"].get<std::string>()};
}

std::string render(const std::string& source, const Variables& variables) {
  return Template::parse(source, "a.jinja").render(variables, settings()).text;
}

/// Runs are as Rendering says they are.
void expect_proper_runs(const Rendering& rendering) {
  size_t end = 0;
  for (size_t i = 0; i < rendering.runs.size(); ++i) {
    const Run& run = rendering.runs[i];
    EXPECT_LE(end, run.begin);
    EXPECT_LE(run.begin, run.end);
    EXPECT_LE(run.end, rendering.text.size());
    const bool touches = i > 0 && end == run.begin;
    EXPECT_FALSE(touches && rendering.runs[i - 1].origin == run.origin) << rendering.text;
    end = run.end;
  }
}

void expect_like_jinja2(const std::string& source, const Json& json, const Json& wanted) {
  for (const Variables& variables : {plain_variables(json), marked_variables(json)}) {
    try {
      const Rendering rendering = Template::parse(source, "a.jinja").render(variables, settings());
      EXPECT_TRUE(wanted.contains("text")) << "jinja2 refuses: " << source << "\nours: " << rendering.text;
      EXPECT_EQ(rendering.text, wanted.value("text", rendering.text)) << source;
      expect_proper_runs(rendering);
    } catch (const UserError& error) {
      EXPECT_TRUE(wanted.contains("error")) << source << "\n" << error.what();
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      EXPECT_THAT(error.what(), testing::StartsWith("a.jinja:"));
    }
  }
}

TEST(JinjaTest, SnippetsGiveWhatJinja2Gives) {
  ASSERT_GT(goldens()["snippets"].size(), 250U);
  for (const auto& snippet : goldens()["snippets"]) {
    expect_like_jinja2(snippet["template"].get<std::string>(), goldens()["variables"], snippet);
  }
}

TEST(JinjaTest, TemplatesGiveWhatJinja2Gives) {
  const auto& conversations = goldens()["conversations"];
  ASSERT_EQ(conversations.size(), 12U);
  ASSERT_GE(goldens()["templates"].size(), 12U);
  for (const auto& each : goldens()["templates"]) {
    for (size_t i = 0; i < conversations.size(); ++i) {
      SCOPED_TRACE(each["name"].get<std::string>() + ", " + conversations[i]["name"].get<std::string>());
      expect_like_jinja2(each["template"].get<std::string>(), conversations[i]["variables"], each["renders"][i]);
    }
  }
}

TEST(JinjaTest, OneTemplateIsRenderedByManyThreads) {
  const auto& conversations = goldens()["conversations"];
  const auto& each = goldens()["templates"].back();
  const Template shared = Template::parse(each["template"].get<std::string>(), "a.jinja");
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  const Variables variables = marked_variables(conversations[7]["variables"]);
  for (std::string& text : texts) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) text = shared.render(variables, settings()).text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(texts, testing::Each(each["renders"][7]["text"].get<std::string>()));
}

/// A rendering with its runs shown: 0[…] for characters of origin 0, and so on.
std::string shown(const std::string& source) {
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
  const Rendering rendering = Template::parse(source, "a.jinja").render(variables, {"2026-11-22"});
  std::string out;
  size_t at = 0;
  for (const Run& run : rendering.runs) {
    out += rendering.text.substr(at, run.begin - at) + std::to_string(run.origin) + "[";
    out += rendering.text.substr(run.begin, run.end - run.begin) + "]";
    at = run.end;
  }
  return out + rendering.text.substr(at);
}

TEST(JinjaOriginTest, PrintedTextsKeepTheirOrigin) {
  EXPECT_EQ(shown("<{{ a }}>"), "<0[Hello wörld]>");
  EXPECT_EQ(shown("{{ a }}{{ a }}{{ b }}"), "0[Hello wörldHello wörld]1[x,y,,z]");
  EXPECT_EQ(shown("{{ m.role }}: {{ m['content'] }}"), "user: 5[<think>why</think>\n\nso]");
  EXPECT_EQ(shown("{{ 1 }}{{ none }}{{ 2.5 }}"), "1None2.5");
}

TEST(JinjaOriginTest, AnEmptyTextLeavesItsPlace) {
  EXPECT_EQ(shown("<{{ none_of_it }}>"), "<2[]>");
  EXPECT_EQ(shown("{{ 'A: ' + none_of_it + '!' }}"), "A: 2[]!");
  EXPECT_EQ(shown("{{ '<' ~ none_of_it ~ '>' }}"), "<2[]>");
  EXPECT_EQ(shown("<{{ space | trim }}>{{ space.strip() }}|{{ space.strip() }}"), "<4[]>4[]|4[]");
  EXPECT_EQ(shown("{{ a[5:5] }}{{ a[100:] }}|{{ m.content.split('so')[-1] }}"), "0[]|5[]");
  EXPECT_EQ(shown("<{{ a | replace('Hello wörld', '') }}>"), "<0[]>");
  EXPECT_EQ(shown("{% set x %}{{ none_of_it }}{% endset %}<{{ x }}>"), "<2[]>");
  EXPECT_EQ(shown("{% macro t(x) %}{{ x }}{% endmacro %}<{{ t(none_of_it) }}>"), "<2[]>");
  EXPECT_EQ(shown("{{ none_of_it | upper }}|{{ none_of_it | tojson }}|{{ none_of_it | indent }}"), "2[]|\"2[]\"|2[]");
  EXPECT_EQ(shown("{{ '%s!' % none_of_it }}{{ none_of_it ~ none_of_it }}"), "2[]!2[]");
}

TEST(JinjaOriginTest, NoEmptyRunStandsBesideCharactersOfItsOrigin) {
  EXPECT_EQ(shown("{{ a[0:0] }}{{ a }}{{ a[0:0] }}"), "0[Hello wörld]");
  EXPECT_EQ(shown("{{ none_of_it }}{{ none_of_it }}"), "2[]");
  EXPECT_EQ(shown("{{ a[0:0] }}{{ none_of_it }}{{ a }}"), "2[]0[Hello wörld]");
}

TEST(JinjaOriginTest, Joined) {
  EXPECT_EQ(shown("{{ 'Q: ' + a + '\\n' + b }}"), "Q: 0[Hello wörld]\n1[x,y,,z]");
  EXPECT_EQ(shown("{{ a ~ 1 ~ b }}"), "0[Hello wörld]11[x,y,,z]");
  EXPECT_EQ(shown("{{ list | join('-') }} {{ ', '.join(list) }} {{ a.join(['<', '>']) }}"),
            "8[p]-9[q] 8[p], 9[q] <0[Hello wörld]>");
  EXPECT_EQ(shown("{{ list[0] * 3 }}"), "8[ppp]");
}

TEST(JinjaOriginTest, CutOut) {
  EXPECT_EQ(shown("{{ a[6:8] }}|{{ a[7] }}|{{ ('<' + a)[:3] }}|{{ a[::-1] }}"), "0[wö]|0[ö]|<0[He]|0[dlröw olleH]");
  EXPECT_EQ(shown("{{ padded.strip() }}|{{ padded | trim }}|{{ padded.rstrip() }}|{{ ('>' ~ padded).lstrip('> ') }}"),
            "3[pad]|3[pad]|3[  pad]|3[pad\n]");
  EXPECT_EQ(shown("{% for part in b.split(',') %}{{ part }};{% endfor %}"), "1[x];1[y];1[];1[z];");
  EXPECT_EQ(shown("{{ m.content.split('</think>')[-1].lstrip('\\n') }}"), "5[so]");
  EXPECT_EQ(shown("{{ m.content.rsplit('>', 1)[1] }}{{ m.content.partition('</think>')[0] }}"), "5[\n\nso<think>why]");
  EXPECT_EQ(shown("{{ lines.splitlines() | join('/') }}"), "6[one]/6[two]/6[three]");
  EXPECT_EQ(shown("{{ a.removeprefix('Hello ') }}|{{ a.removesuffix('ld') }}"), "0[wörld]|0[Hello wör]");
  EXPECT_EQ(shown("{% for c in a[4:8] %}{{ c }}.{% endfor %}{{ a | first }}{{ a | last }}"),
            "0[o].0[ ].0[w].0[ö].0[Hd]");
  EXPECT_EQ(shown("{{ a | truncate(8, true, '…', 0) }}"), "0[Hello w]…");
}

TEST(JinjaOriginTest, Changed) {
  EXPECT_EQ(shown("{{ a | replace('o', '0') }}|{{ a.replace('Hello', b) }}"), "0[Hell]00[ wörld]|1[x,y,,z]0[ wörld]");
  EXPECT_EQ(shown("{{ sharp | upper }}!{{ sharp.upper() | lower }}{{ 'ab' | upper }}"), "10[STRASSE]!10[strasse]AB");
  EXPECT_EQ(shown("{{ a | capitalize }}{{ a | title }}{{ a.title() }}"), "0[Hello wörldHello WörldHello Wörld]");
  EXPECT_EQ(shown("{{ lines | indent(2) }}"), "6[one\n]  6[two\n]  6[three]");
  EXPECT_EQ(shown("{{ list[0].ljust(3, '.') }}{{ list[0].zfill(3) }}{{ list[0] | center(3) }}|"),
            "8[p]..008[p] 8[p] |");
  EXPECT_EQ(shown("{{ '<' + a | e }}{{ quoted | e }}"), "&lt;0[Hello wörld]7[say &#34;é&#34;\n]");
  EXPECT_EQ(shown("{{ '%s and %5s' % (a, list[0]) }}{{ '%.2s' | format(b) }}{{ '{}-{}'.format(list[1], 1) }}"),
            "0[Hello wörld] and     8[p]1[x,]9[q]-1");
  EXPECT_EQ(shown("{{ a | string | safe | default('x') }}{{ missing | default(b) }}"), "0[Hello wörld]1[x,y,,z]");
}

TEST(JinjaOriginTest, WrittenByTheInterpreter) {
  EXPECT_EQ(shown("{{ quoted | tojson }}"), "\"7[say \\\"é\\\"\\n]\"");
  EXPECT_EQ(shown("{{ {'k': [a, 1]} | tojson }}"), "{\"k\": [\"0[Hello wörld]\", 1]}");
  EXPECT_EQ(shown("{{ [list[0], 'x'] }}"), "['8[p]', 'x']");
  EXPECT_EQ(shown("{{ a | length }}{{ a.find('w') }}{{ strftime_now('%Y') }}"), "1162026");
}

TEST(JinjaOriginTest, ThroughBlocks) {
  EXPECT_EQ(shown("{% set x %}[{{ a }}]{% endset %}{{ x | upper }}"), "[0[HELLO WÖRLD]]");
  EXPECT_EQ(
      shown("{% macro turn(t) %}<{{ t }}{{ caller() }}>{% endmacro %}{% call turn(list[0]) %}{{ b }}{% endcall %}"),
      "<8[p]1[x,y,,z]>");
  EXPECT_EQ(shown("{% filter trim | upper %}  {{ padded }}! {% endfilter %}"), "3[PAD\n]!");
  EXPECT_EQ(shown("{% generation %}{{ a }}<eos>{% endgeneration %}"), "0[Hello wörld]<eos>");
  EXPECT_EQ(shown("{% set ns = namespace(t='') %}{% for x in list %}{% set ns.t = ns.t + x %}{% endfor %}{{ ns.t }}"),
            "8[p]9[q]");
}

std::string refusal_of(const std::string& source) {
  try {
    Template::parse(source, "a.jinja");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(JinjaTest, WhatThereIsNotIsSaidBeforeAnythingIsRendered) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal_of("a\n{{ x | nope }}"), HasSubstr("a.jinja:2: there is no filter \"nope\""));
  EXPECT_THAT(refusal_of("{{ x is nope }}"), HasSubstr("a.jinja:1: there is no test \"nope\""));
  EXPECT_THAT(refusal_of("\n\n{% nope %}"), HasSubstr("a.jinja:3: there is no statement \"nope\""));
  EXPECT_THAT(refusal_of("{{ nope(1) }}"), HasSubstr("there is no function \"nope\""));
  EXPECT_THAT(refusal_of("{{ x | map('nope') }}"), HasSubstr("there is no filter \"nope\""));
  EXPECT_THAT(refusal_of("{{ x | selectattr('a', 'nope') }}"), HasSubstr("there is no test \"nope\""));
  EXPECT_THAT(refusal_of("{{ x.encode() }}"), HasSubstr("the method encode() is not supported"));
  EXPECT_THAT(refusal_of("{% if x %}\n{{ 1 }}"), HasSubstr("the block of line 1 lacks its end, {% endif %}"));
  EXPECT_THAT(refusal_of("{% if x %}{% endfor %}"),
              HasSubstr("\"endfor\" stands where elif or else or endif is missing"));
  EXPECT_THAT(refusal_of("{{ 'abc }}"), HasSubstr("a text lacks its closing quote"));
  EXPECT_THAT(refusal_of("{{ a b }}"), HasSubstr("}} is missing before \"b\""));
  EXPECT_THAT(refusal_of("\xff"), HasSubstr("a.jinja:1: the template is not UTF-8"));
  EXPECT_EQ(refusal_of("{% macro m() %}{% endmacro %}{{ m() }}{% if f %}{{ f() }}{{ f | nope }}{% endif %}"), "");
}

TEST(JinjaTest, ATemplateThatRaisesSaysWhatAndWhere) {
  try {
    render("\n{% for x in [1] %}\n{{ raise_exception('only ' ~ x ~ ' role') }}{% endfor %}", {});
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_TRUE(error.raised());
    EXPECT_EQ(error.message(), "only 1 role");
    EXPECT_STREQ(error.what(), "a.jinja:3: only 1 role");
    EXPECT_EQ(error.code(), ExitCode::kBadData);
  }
  try {
    render("{{ x.y }}", {});
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_FALSE(error.raised());
    EXPECT_EQ(error.message(), "'x' is undefined");
  }
  EXPECT_THROW(Template::parse("{{ strftime_now('%Y') }}", "a.jinja").render({}, {}), TemplateError);
}

std::string repeated(std::string_view part, size_t times) {
  std::string whole;
  for (size_t i = 0; i < times; ++i) whole += part;
  return whole;
}

/// Why a template that asks for too much is stopped.
std::string stopped(const std::string& source) {
  try {
    render(source, {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "it was rendered";
}

TEST(JinjaTest, WhatHasNoEndIsStopped) {
  using testing::HasSubstr;
  const std::string forever = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}";
  EXPECT_THAT(stopped(forever), HasSubstr("more than 10000000 steps"));
  EXPECT_THAT(stopped("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("deep in each other"));
  EXPECT_THAT(stopped("{{ range(10 ** 12) }}"), HasSubstr("more than 100000 numbers"));
  EXPECT_THAT(stopped("{{ 'x' * 10 ** 12 }}"), HasSubstr("a text or list grows beyond 32 MB"));
  EXPECT_THAT(stopped("{{ [1] * 10 ** 12 }}"), HasSubstr("a text or list grows beyond 32 MB"));
  EXPECT_THAT(stopped("{{ 'x'.center(10 ** 12) }}"), HasSubstr("grows beyond"));
  EXPECT_THAT(stopped("{{ '%9999999d' % 1 }}"), HasSubstr("a format asks for more than 1000 characters"));
  EXPECT_THAT(stopped("{{ 10 ** 30 }}"), HasSubstr("a whole number leaves 64 bits"));
  const std::string doubling =
      "{% set n = namespace(x=['a']) %}{% for i in range(100) %}{% set n.x = [n.x, n.x] %}{% endfor %}";
  const auto is_stopped =
      testing::AnyOf(HasSubstr("grows beyond"), HasSubstr("takes more than"), HasSubstr("makes more than"));
  EXPECT_THAT(stopped(doubling + "{{ n.x }}"), is_stopped);
  EXPECT_THAT(stopped(doubling + "{{ n.x | tojson }}"), is_stopped);
  EXPECT_THAT(stopped(doubling + "{% set o = n.x %}" + doubling + "{{ o == n.x }}"), is_stopped);
  const std::string deeper = "{% set n = namespace(x=1) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}";
  EXPECT_THAT(stopped(deeper), HasSubstr("more than 200 deep in each other"));
  EXPECT_THAT(stopped("{% set n = namespace(x='x') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}"),
              is_stopped);
  EXPECT_THAT(stopped("{% set x = 'x' * 30000000 %}{% for i in range(99) %}{{ x[1:] | length }}{% endfor %}"),
              is_stopped);
}

TEST(JinjaTest, DeepSourceIsRefused) {
  using testing::HasSubstr;
  const std::vector<std::pair<const char*, const char*>> nested = {{"(", ")"},   {"[", "]"},  {"{1:", "}"},
                                                                   {"not ", ""}, {"-", ""},   {"1 if 1 else ", ""},
                                                                   {"x[", "]"},  {"f(", ")"}, {"x is eq (", ")"}};
  for (const auto& [before, after] : nested) {
    const std::string source = "{{ " + repeated(before, 50'000) + "1" + repeated(after, 50'000) + " }}";
    EXPECT_THAT(refusal_of(source), HasSubstr("deep")) << before;
  }
  EXPECT_THAT(refusal_of(repeated("{% if 1 %}", 50'000)), HasSubstr("deep"));
  EXPECT_THAT(refusal_of(repeated("{% for a in b %}", 50'000)), HasSubstr("deep"));
  EXPECT_THAT(refusal_of("{% for " + repeated("(", 50'000) + "a" + repeated(",)", 50'000) + " in b %}{% endfor %}"),
              HasSubstr("deep"));
  EXPECT_THAT(refusal_of("{{ 1" + repeated("+1", 100'000) + " }}"), HasSubstr("operations deep"));
  EXPECT_THAT(refusal_of("{{ x" + repeated(".y", 100'000) + " }}"), HasSubstr("operations deep"));
  EXPECT_THAT(refusal_of("{{ x" + repeated("|trim", 100'000) + " }}"), HasSubstr("operations deep"));
  EXPECT_EQ(render("{{ 1" + repeated("+1", 200) + " }}{{ ''" + repeated("~1", 1000) + " }}", {}).size(), 1003U);
}

TEST(JinjaTest, WhatHoldsItselfIsFreed) {
  // What leaks here fails under AddressSanitizer.
  EXPECT_EQ(render("{% set n = namespace() %}{% set n.n = n %}{% macro m() %}{% endmacro %}{% set n.m = m %}"
                   "{% for x in [1] %}{% macro k() %}{{ x }}{% endmacro %}{% set n.k = k %}{% set n.l = loop %}"
                   "{{ loop.changed(loop) }}{% endfor %}{{ n.k() }}",
                   {}),
            "True1");
  const std::string many = "{% set n = namespace(x=0) %}{% for i in range(50000) %}{% set n.x = ";
  for (const char* holder : {"namespace(x=n.x)", "joiner(n.x)", "cycler(n.x)", "{'x': n.x}"}) {
    stopped(many + holder + " %}{% endfor %}");
  }
}

}  // namespace
}  // namespace vlmtrain::text::jinja
