#include "io/record/record_columns.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/media/record_media.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {
namespace {

bool has_non_null_value(const RecordJson& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && !it->is_null();
}

void erase_keys(RecordJson& record, std::initializer_list<const char*> keys) {
  for (const char* key : keys) record.erase(key);
}

/// Erases the keys that a mapped column replaces. They would have priority in add_messages(), or
/// conflict with the mapped column.
void erase_replaced_keys(RecordJson& record, const std::map<std::string, std::string>& columns) {
  const auto is_mapped_column = [&](const char* name) { return columns.contains(name); };
  const bool has_turns = is_mapped_column("messages") || is_mapped_column("question") || is_mapped_column("answer") ||
                         is_mapped_column("caption");
  const bool has_document = is_mapped_column("text") || is_mapped_column("document");
  if (has_document) erase_keys(record, {"text", "document", "texts", "text_list"});
  if (has_document && !has_turns) {
    erase_keys(record, {"messages", "conversations", "question", "answer", "output", "caption"});
  }
  if (is_mapped_column("messages")) erase_keys(record, {"conversations", "texts"});
  const bool has_question_or_answer = is_mapped_column("question") || is_mapped_column("answer");
  if (!is_mapped_column("messages") && (has_question_or_answer || is_mapped_column("caption"))) {
    erase_keys(record, {"messages", "conversations", "texts"});
  }
  if (is_mapped_column("caption") && !has_question_or_answer)
    erase_keys(record, {"question", "answer", "instruction", "input", "output"});
  for (const auto& [singular, plural] :
       {std::pair{"image", "images"}, std::pair{"video", "videos"}, std::pair{"volume", "volumes"}}) {
    if (is_mapped_column(singular) && !is_mapped_column(plural)) erase_keys(record, {plural});
    if (is_mapped_column(plural) && !is_mapped_column(singular)) erase_keys(record, {singular});
  }
}

/// Removes `ignored_keys` from a record, its turns and their content blocks. Keys of the record that
/// `columns` maps stay.
void remove_ignored_keys(RecordJson& record, const std::vector<std::string>& ignored_keys,
                         const std::map<std::string, std::string>& columns) {
  const auto erase_ignored_keys = [&](RecordJson& object) {
    for (const std::string& key : ignored_keys) object.erase(key);
  };
  const auto erase_and_visit_entries = [&](RecordJson& list, const auto& visit) {
    if (!list.is_array()) return;
    for (RecordJson& entry : list) {
      if (!entry.is_object()) continue;
      erase_ignored_keys(entry);
      visit(entry);
    }
  };
  for (const std::string& key : ignored_keys) {
    const auto is_mapped = [&](const auto& column) { return column.second == key; };
    if (std::ranges::none_of(columns, is_mapped)) record.erase(key);
  }
  for (const char* turns : {"messages", "conversations", "texts", "document"}) {
    if (!record.contains(turns)) continue;
    erase_and_visit_entries(record[turns], [&](RecordJson& turn) {
      for (const char* content : {"content", "value"}) {
        if (turn.contains(content)) erase_and_visit_entries(turn[content], [](RecordJson&) {});
      }
    });
  }
}

RecordJson make_turn(const char* role, RecordJson content) {
  return {{"role", role}, {"content", std::move(content)}};
}

/// Converts "texts" of the_cauldron and FineVision, objects with "user" and "assistant". Their
/// other keys move to the assistant's turn, where check_keys() reports them.
RecordJson convert_texts_to_messages(RecordJson& record) {
  RecordJson texts = take_field(record, "texts");
  if (!texts.is_array()) throw data_error("its \"texts\" is not a list of questions and answers");
  RecordJson turns = RecordJson::array();
  for (RecordJson& pair : texts) {
    if (!pair.is_object()) throw data_error("its \"texts\" has an entry that is not an object");
    turns.push_back(make_turn("user", take_field(pair, "user")));
    turns.push_back(make_turn("assistant", take_field(pair, "assistant")));
    for (auto entry = pair.begin(); entry != pair.end(); ++entry) {
      if (!turns.back().contains(entry.key())) turns.back()[entry.key()] = std::move(*entry);
    }
  }
  return turns;
}

/// Converts a caption to two turns: the user's has placeholders for the media, the assistant's has
/// the caption.
RecordJson convert_caption_to_messages(RecordJson& record) {
  std::string placeholders;
  for (const MediaKind& kind : {kImageKind, kVideoKind, kVolumeKind}) {
    for (size_t i = count_listed_media(record, kind); i > 0; --i) placeholders += kind.placeholder;
  }
  if (placeholders.empty()) throw data_error("has a \"caption\" but no image, video or volume");
  return {make_turn("user", std::move(placeholders)), make_turn("assistant", take_field(record, "caption"))};
}

/// Returns a text field of Alpaca's format, or "" if it is blank. Numbers become strings.
std::string to_alpaca_text(const RecordJson& value, const char* key) {
  if (is_blank(value)) return {};
  if (auto text = format_scalar(value)) return *std::move(text);
  throw data_error(
      "its \"{0}\" is neither a string nor a number; write it as text, or set {1}=[{0}] to train without it", key,
      keys::data::kIgnoreKeys);
}

/// Converts Alpaca's format: "instruction", "input", "output" and LLaMA-Factory's "history", a list
/// of earlier questions and answers. As in LLaMA-Factory, the input follows the instruction on a
/// new line.
RecordJson convert_alpaca_to_messages(RecordJson& record) {
  RecordJson turns = RecordJson::array();
  if (RecordJson history = take_field(record, "history"); !is_blank(history)) {
    if (!history.is_array())
      throw data_error(
          "its \"history\" is not a list of questions with their answers; write [[question, answer], …], or set "
          "{}=[history] to train without it",
          keys::data::kIgnoreKeys);
    for (RecordJson& pair : history) {
      if (!pair.is_array() || pair.size() != 2) {
        throw data_error("its \"history\" has an entry that is not a question with its answer");
      }
      turns.push_back(make_turn("user", std::move(pair[0])));
      turns.push_back(make_turn("assistant", std::move(pair[1])));
    }
  }
  RecordJson question = take_field(record, "instruction");
  const std::string input = to_alpaca_text(take_field(record, "input"), "input");
  if (!input.empty()) {
    const std::string instruction = to_alpaca_text(question, "instruction");
    question = instruction.empty() ? input : instruction + "\n" + input;
  }
  turns.push_back(make_turn("user", std::move(question)));
  turns.push_back(make_turn("assistant", take_field(record, "output")));
  return turns;
}

/// Converts "question" and "answer".
RecordJson convert_question_to_messages(RecordJson& record) {
  for (const char* key : {"question", "answer"}) {
    if (!has_non_null_value(record, key)) throw data_error("has no \"{}\"", key);
  }
  return {make_turn("user", take_field(record, "question")), make_turn("assistant", take_field(record, "answer"))};
}

/// A layout of a record without a list of turns.
struct RecordLayout {
  bool (*matches)(const RecordJson& record);
  RecordJson (*convert)(RecordJson& record);  ///< returns the turns as messages; the converted values become null
};

/// The layouts in their order of priority.
constexpr std::array kRecordLayouts = std::to_array<RecordLayout>({
    {[](const RecordJson& record) { return has_non_null_value(record, "texts"); }, convert_texts_to_messages},
    {[](const RecordJson& record) {
       return has_non_null_value(record, "question") || has_non_null_value(record, "answer");
     },
     convert_question_to_messages},
    {[](const RecordJson& record) {
       return has_non_null_value(record, "output") &&
              (has_non_null_value(record, "instruction") || has_non_null_value(record, "input"));
     },
     convert_alpaca_to_messages},
    {[](const RecordJson& record) { return has_non_null_value(record, "caption"); }, convert_caption_to_messages},
});

/// Converts a record without turns to one with "messages", if it has one of kRecordLayouts.
void add_messages(RecordJson& record) {
  for (const char* key : {"messages", "conversations"}) {
    if (has_non_null_value(record, key) && !is_blank(record[key])) return;
  }
  const auto* layout = std::ranges::find_if(kRecordLayouts, [&](const auto& entry) { return entry.matches(record); });
  if (layout == kRecordLayouts.end()) return;
  RecordJson messages = layout->convert(record);
  record["messages"] = std::move(messages);
}

/// Moves the list of turns out of a record: "messages", else "conversations". Throws data_error if
/// the record has neither, or if the list is empty or not a list.
RecordJson take_turns(RecordJson& record) {
  for (const char* key : {"messages", "conversations"}) {
    if (!has_non_null_value(record, key)) continue;
    const RecordJson& turns = record[key];
    if (turns.is_array() && turns.empty() && key == std::string_view("messages") &&
        has_non_null_value(record, "conversations")) {
      continue;  // an empty column of a table whose other rows use it
    }
    if (!turns.is_array()) throw data_error("its \"{}\" is not a list of turns", key);
    if (turns.empty()) throw data_error("its \"{}\" is empty: a question and its answer are expected", key);
    return take_field(record, key);
  }
  throw data_error(
      "has no \"conversations\" and no \"messages\", nor a \"question\" and its \"answer\", a \"caption\" or a "
      "\"text\"; set {} if they have other names",
      keys::data::kColumns);
}

/// Joins a system text that is a list of strings to lines, and makes a blank one null. Throws
/// data_error for an object.
void normalize_system_text(RecordJson& system) {
  const auto is_text = [](const RecordJson& entry) { return entry.is_string(); };
  if (is_blank(system)) {
    system = nullptr;
  } else if (system.is_object()) {
    throw data_error(
        "its \"system\" is neither a string nor a list of content blocks; write it as text, or set {}=[system] to "
        "train without it",
        keys::data::kIgnoreKeys);
  } else if (system.is_array() && std::ranges::all_of(system, is_text)) {
    std::string text;
    for (const RecordJson& line : system) {
      if (!text.empty()) text += "\n";
      text += line.get_ref<const std::string&>();
    }
    system = std::move(text);
  }
}

}  // namespace

void rename_columns(RecordJson& record, const std::map<std::string, std::string>& columns,
                    const std::vector<std::string>& ignored_keys) {
  if (!ignored_keys.empty()) remove_ignored_keys(record, ignored_keys, columns);
  if (columns.empty()) return;
  RecordJson renamed_fields = RecordJson::object();
  for (const auto& [name, source_name] : columns) {
    if (has_non_null_value(record, source_name.c_str())) renamed_fields[name] = record[source_name];
  }
  if (renamed_fields.empty()) {
    const auto& [name, source_name] = *columns.begin();
    throw data_error("has none of the fields of {}, such as \"{}\" for \"{}\"", keys::data::kColumns,
                     make_excerpt(source_name), name);
  }
  const auto find_renamed_key = [&](std::initializer_list<const char*> names) {
    return std::ranges::find_if(names, [&](const char* name) { return renamed_fields.contains(name); });
  };
  const std::initializer_list<const char*> document_names{"text", "document"};
  const std::initializer_list<const char*> turn_names{"messages", "question", "answer", "caption"};
  const auto* document_name = find_renamed_key(document_names);
  const auto* turn_name = find_renamed_key(turn_names);
  if (document_name != document_names.end() && turn_name != turn_names.end()) {
    throw data_error("has the fields of both \"{}\" and \"{}\" of {}; map one of them", *document_name, *turn_name,
                     keys::data::kColumns);
  }
  erase_replaced_keys(record, columns);
  for (auto& [name, value] : renamed_fields.items()) record[name] = std::move(value);
}

RecordJson convert_layout(RecordJson& record) {
  add_messages(record);
  RecordJson turns = take_turns(record);
  if (has_non_null_value(record, "system")) normalize_system_text(record["system"]);
  return turns;
}

// The names are those that take_turns() and kRecordLayouts read. "instruction" and "input" need an
// "output".
bool may_have_turns(const std::vector<std::string>& fields, const std::map<std::string, std::string>& columns) {
  const auto matches_any = [](const std::string& name, std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  return std::ranges::any_of(fields,
                             [&](const std::string& field) {
                               return matches_any(field, {"messages", "conversations", "texts", "question", "answer",
                                                          "output", "caption", "text", "document", "text_list"});
                             }) ||
         std::ranges::any_of(columns, [&](const auto& column) {
           return matches_any(column.first, {"messages", "question", "answer", "caption", "text", "document"});
         });
}

}  // namespace vlmtrain::io
