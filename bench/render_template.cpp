// Renders a chat template as training does: reads {"template", "variables": [{…}, …], "now", "repeats"} as JSON on
// standard input and writes {"error"} for a template that is refused, or {"renders": [{"text"} or {"error"}, …],
// "seconds"}: of one render in the mean, over `repeats` of all. Every text in `messages` has an origin of its own, as
// in training.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <iostream>
#include <iterator>

#include "text/jinja/template.h"

namespace {

namespace jinja = vlmtrain::text::jinja;
using Json = nlohmann::ordered_json;

jinja::Value marked(const Json& json, int& origins) {
  if (json.is_string()) return jinja::Value::text(json.get<std::string>(), origins++);
  if (json.is_array()) {
    std::vector<jinja::Value> items;
    for (const auto& item : json) items.push_back(marked(item, origins));
    return jinja::Value::list(std::move(items));
  }
  if (json.is_object()) {
    std::vector<std::pair<std::string, jinja::Value>> entries;
    for (const auto& [key, value] : json.items()) entries.emplace_back(key, marked(value, origins));
    return jinja::Value::dict(std::move(entries));
  }
  return jinja::Value::of_json(json);
}

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

Variables variables_of(const Json& json) {
  int origins = 0;
  Variables variables;
  for (const auto& [name, value] : json.items()) {
    variables.emplace_back(name, name == "messages" ? marked(value, origins) : jinja::Value::of_json(value));
  }
  return variables;
}

Json render(const Json& request) {
  const auto parsed = jinja::Template::parse(request["template"].get<std::string>(), request.value("name", "template"));
  const jinja::RenderSettings settings{request.value("now", "")};
  std::vector<Variables> conversations;
  for (const auto& variables : request["variables"]) conversations.push_back(variables_of(variables));
  Json renders = Json::array();
  for (const Variables& variables : conversations) {
    try {
      renders.push_back({{"text", parsed.render(variables, settings).text}});
    } catch (const jinja::TemplateError& error) {
      renders.push_back({{"error", error.what()}});
    }
  }
  const int repeats = request.value("repeats", 0);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) {
    for (const Variables& variables : conversations) {
      try {
        parsed.render(variables, settings);
      } catch (const jinja::TemplateError&) {
        continue;
      }
    }
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const double count = static_cast<double>(repeats) * static_cast<double>(conversations.size());
  return {{"renders", std::move(renders)}, {"seconds", count > 0 ? taken.count() / count : 0}};
}

}  // namespace

int main() {
  try {
    const std::string input(std::istreambuf_iterator<char>(std::cin), {});
    Json result;
    try {
      result = render(Json::parse(input));
    } catch (const vlmtrain::UserError& error) {
      result = {{"error", error.what()}};
    }
    std::cout << result.dump() << "\n";
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 5;
  }
}
