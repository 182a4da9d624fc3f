#pragma once

#include <map>
#include <string>
#include <vector>

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// Removes the keys of data.ignore_keys from a record, its turns and their content blocks, except
/// for mapped columns. Then copies the columns of the record to their names in kRenamableColumns.
/// `columns` has the data set's names by these names (RecordSettings::columns). Overwrites other
/// values under these names, and erases keys that a mapped column replaces, such as "conversations"
/// for a mapped question. Throws data_error if the record has none of the mapped columns.
void rename_columns(RecordJson& record, const std::map<std::string, std::string>& columns,
                    const std::vector<std::string>& ignored_keys);

/// Moves the turns out of a record of any layout and returns them as a list of messages: "messages",
/// else "conversations", else converted from "texts", "question" and "answer", "instruction" and
/// "output", or "caption". Converted values become null. "system" becomes a text or a list of content
/// blocks, or null if it is blank. Throws data_error if the record has no turns, or if its fields are
/// incomplete or invalid.
RecordJson convert_layout(RecordJson& record);

/// Returns true if records with these fields may have turns, directly or after rename_columns().
bool may_have_turns(const std::vector<std::string>& fields, const std::map<std::string, std::string>& columns);

}  // namespace vlmtrain::io
