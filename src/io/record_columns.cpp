#include "io/record_columns.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "io/media_places.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

bool has(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

void drop(json& record, std::initializer_list<const char*> keys) {
  for (const char* key : keys) record.erase(key);
}

/// What would stand beside a mapped column, or before it.
void drop_others(json& record, const std::map<std::string, std::string>& columns) {
  const auto is_mapped = [&](const char* name) { return columns.contains(name); };
  if (is_mapped("messages")) drop(record, {"conversations", "texts"});
  const bool has_question = is_mapped("question") || is_mapped("answer");
  if (!is_mapped("messages") && (has_question || is_mapped("caption"))) {
    drop(record, {"messages", "conversations", "texts"});
  }
  if (is_mapped("caption") && !has_question) drop(record, {"question", "answer", "instruction", "input", "output"});
  for (const auto& [one, several] :
       {std::pair{"image", "images"}, std::pair{"video", "videos"}, std::pair{"volume", "volumes"}}) {
    if (is_mapped(one) && !is_mapped(several)) drop(record, {several});
    if (is_mapped(several) && !is_mapped(one)) drop(record, {one});
  }
}

json turn(const char* role, json content) {
  return {{"role", role}, {"content", std::move(content)}};
}

/// A value of `key`, moved out of `object`; null where it has none.
json taken(json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? json() : std::move(*found);
}

/// the_cauldron and FineVision: one picture, or several, and many questions about them.
json of_texts(json& texts) {
  if (!texts.is_array()) throw data_error("its \"texts\" is not a list of questions and answers");
  json turns = json::array();
  for (json& pair : texts) {
    if (!pair.is_object()) throw data_error("its \"texts\" has an entry that is no object");
    turns.push_back(turn("user", taken(pair, "user")));
    turns.push_back(turn("assistant", taken(pair, "assistant")));
  }
  return turns;
}

/// A picture or a volume and what is to be said of it, which nobody asks for in words.
json of_caption(json& record) {
  std::string marks;
  for (const MediaKind& kind : {kImages, kVideos, kVolumes}) {
    for (const char* key : kind.keys) {
      const auto found = record.find(key);
      if (found == record.end() || found->is_null()) continue;
      for (size_t i = 0; i < (found->is_array() ? found->size() : 1); ++i) marks += kind.mark;
    }
  }
  return {turn("user", std::move(marks)), turn("assistant", taken(record, "caption"))};
}

bool is_filled_text(const json& value) {
  return value.is_string() && !value.get_ref<const std::string&>().empty();
}

/// Of former questions and answers, as LLaMA-Factory has them.
json of_alpaca(json& record) {
  json turns = json::array();
  if (const auto history = record.find("history"); history != record.end() && history->is_array()) {
    for (json& pair : *history) {
      if (!pair.is_array() || pair.size() != 2) {
        throw data_error("its \"history\" has an entry that is no question with its answer");
      }
      turns.push_back(turn("user", std::move(pair[0])));
      turns.push_back(turn("assistant", std::move(pair[1])));
    }
  }
  json question = taken(record, "instruction");
  const json input = taken(record, "input");
  if (is_filled_text(input) && is_filled_text(question)) {
    question = question.get<std::string>() + "\n" + input.get<std::string>();
  } else if (is_filled_text(input)) {
    question = input;
  }
  turns.push_back(turn("user", std::move(question)));
  turns.push_back(turn("assistant", taken(record, "output")));
  return turns;
}

}  // namespace

void rename_columns(json& record, const std::map<std::string, std::string>& columns) {
  if (columns.empty()) return;
  json renamed = json::object();
  for (const auto& [name, theirs] : columns) {
    if (has(record, theirs.c_str())) renamed[name] = record[theirs];
  }
  if (renamed.empty()) {
    const auto& [name, theirs] = *columns.begin();
    throw data_error("has none of the fields that data.columns names, such as \"{}\" for \"{}\"", excerpt(theirs),
                     name);
  }
  drop_others(record, columns);
  for (auto& [name, value] : renamed.items()) record[name] = std::move(value);
}

void make_messages(json& record) {
  if (has(record, "messages") || has(record, "conversations")) return;
  if (has(record, "texts")) {
    record["messages"] = of_texts(record["texts"]);
  } else if (has(record, "question") || has(record, "answer")) {
    for (const char* key : {"question", "answer"}) {
      if (!has(record, key)) throw data_error("has no \"{}\"", key);
    }
    record["messages"] = {turn("user", taken(record, "question")), turn("assistant", taken(record, "answer"))};
  } else if (has(record, "output") && (has(record, "instruction") || has(record, "input"))) {
    record["messages"] = of_alpaca(record);
  } else if (has(record, "caption")) {
    record["messages"] = of_caption(record);
  }
}

bool can_make_turns(const std::vector<std::string>& fields, const std::map<std::string, std::string>& columns) {
  const auto is_any_of = [](const std::string& name, std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  return std::ranges::any_of(fields,
                             [&](const std::string& field) {
                               return is_any_of(field, {"messages", "conversations", "texts", "question", "answer",
                                                        "output", "caption"});
                             }) ||
         std::ranges::any_of(columns, [&](const auto& column) {
           return is_any_of(column.first, {"messages", "question", "answer", "caption"});
         });
}

}  // namespace vlmtrain::io
