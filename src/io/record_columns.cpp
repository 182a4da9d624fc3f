#include "io/record_columns.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "io/json_scalar.h"
#include "io/media_likeness.h"
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

/// A value of `key`, moved out of `object`, where null is left; null where it has none.
json taken(json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? json() : std::exchange(*found, nullptr);
}

/// the_cauldron and FineVision: one picture, or several, and many questions about them.
json of_texts(json& texts) {
  if (!texts.is_array()) throw data_error("its \"texts\" is not a list of questions and answers");
  json turns = json::array();
  for (json& pair : texts) {
    if (!pair.is_object()) throw data_error("its \"texts\" has an entry that is no object");
    turns.push_back(turn("user", taken(pair, "user")));
    turns.push_back(turn("assistant", taken(pair, "assistant")));
    for (auto entry = pair.begin(); entry != pair.end(); ++entry) {
      if (!turns.back().contains(entry.key())) turns.back()[entry.key()] = std::move(*entry);
    }
  }
  return turns;
}

/// A picture or a volume and what is to be said of it, which nobody asks for in words.
json of_caption(json& record) {
  std::string marks;
  for (const MediaKind& kind : {kImages, kVideos, kVolumes}) {
    for (size_t i = count_listed_media(record, kind); i > 0; --i) marks += kind.mark;
  }
  if (marks.empty()) throw data_error("has a \"caption\", and no image, video or volume that it is about");
  return {turn("user", std::move(marks)), turn("assistant", taken(record, "caption"))};
}

/// One of Alpaca's texts: a number becomes a text.
std::string alpaca_text(const json& value, const char* key) {
  if (is_blank(value)) return {};
  if (auto text = scalar_text(value)) return *std::move(text);
  throw data_error(
      "its \"{0}\" is neither a text nor a number; write it as text, or set data.ignore_keys=[{0}] to train "
      "without it",
      key);
}

/// Of former questions and answers, as LLaMA-Factory has them.
json of_alpaca(json& record) {
  json turns = json::array();
  if (json history = taken(record, "history"); !is_blank(history)) {
    if (!history.is_array())
      throw data_error(
          "its \"history\" is not a list of questions with their answers; write [[question, answer], …], or set "
          "data.ignore_keys=[history] to train without it");
    for (json& pair : history) {
      if (!pair.is_array() || pair.size() != 2) {
        throw data_error("its \"history\" has an entry that is no question with its answer");
      }
      turns.push_back(turn("user", std::move(pair[0])));
      turns.push_back(turn("assistant", std::move(pair[1])));
    }
  }
  json question = taken(record, "instruction");
  const std::string input = alpaca_text(taken(record, "input"), "input");
  if (!input.empty()) {
    const std::string instruction = alpaca_text(question, "instruction");
    question = instruction.empty() ? input : instruction + "\n" + input;
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
  const auto has_turns = [&](const char* key) { return has(record, key) && !is_blank(record[key]); };
  if (has_turns("messages") || has_turns("conversations")) return;
  if (has(record, "texts")) {
    json texts = taken(record, "texts");
    record["messages"] = of_texts(texts);
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
