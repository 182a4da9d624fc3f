// Renders a chat template like training. Reads {"template", "variables": [{…}, …], "now",
// "repeats"} as JSON from standard input. Writes {"error"} for a rejected template, or {"renders":
// [{"text"} or {"error"}, …], "seconds"}, the mean of one render over `repeats` of all. Every text
// in `messages` has its own origin, as in training.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <iostream>
#include <iterator>

#include "text/jinja/template.h"

namespace {

namespace jinja = vlmtrain::text::jinja;
using Json = nlohmann::ordered_json;

jinja::Value to_marked_value(const Json& json, int& origins) {
  if (json.is_string()) return jinja::Value::text(json.get<std::string>(), origins++);
  if (json.is_array()) {
    std::vector<jinja::Value> items;
    for (const auto& item : json) items.push_back(to_marked_value(item, origins));
    return jinja::Value::list(std::move(items));
  }
  if (json.is_object()) {
    std::vector<std::pair<std::string, jinja::Value>> entries;
    for (const auto& [key, value] : json.items()) entries.emplace_back(key, to_marked_value(value, origins));
    return jinja::Value::dict(std::move(entries));
  }
  return jinja::Value::from_json(json);
}

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

Variables parse_variables(const Json& json) {
  int origins = 0;
  Variables variables;
  for (const auto& [name, value] : json.items()) {
    variables.emplace_back(name, name == "messages" ? to_marked_value(value, origins) : jinja::Value::from_json(value));
  }
  return variables;
}

Json render(const Json& request) {
  const auto chat_template =
      jinja::Template::parse(request["template"].get<std::string>(), request.value("name", "template"));
  const jinja::RenderSettings settings{request.value("now", "")};
  std::vector<Variables> conversations;
  for (const auto& variables : request["variables"]) conversations.push_back(parse_variables(variables));
  Json renders = Json::array();
  for (const Variables& variables : conversations) {
    try {
      renders.push_back({{"text", chat_template.render(variables, settings).text}});
    } catch (const jinja::TemplateError& error) {
      renders.push_back({{"error", error.what()}});
    }
  }
  const int repeats = request.value("repeats", 0);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) {
    for (const Variables& variables : conversations) {
      try {
        chat_template.render(variables, settings);
      } catch (const jinja::TemplateError&) {
        continue;
      }
    }
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double count = static_cast<double>(repeats) * static_cast<double>(conversations.size());
  return {{"renders", std::move(renders)}, {"seconds", count > 0 ? elapsed.count() / count : 0}};
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
